"""Throughput of gloo on a link, by method to sum a bucket, bucket size and groups, sequential or concurrent."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.slow_lan.rates import TCP_SHARE, bits, written
from benchmarks.slow_lan.rig import Node, Outcome, Rig

METHODS = ("all_reduce", "reduce_scatter", "all_to_all", "all_to_all_twice", "straight", "tree")
"""Names of functions in `transport_rank`; the last five are a scatter and a gather each."""
SIZES_MB = (1, 4, 25, 64)
STREAMS = (1, 2, 4)
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Case:
    method: str
    bucket_bytes: int
    buckets: int
    pipelined: bool
    """All buckets are sent as early as possible; otherwise one after another."""
    streams: int
    """Process groups, and with them TCP connections, that share the buckets."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    case: Case
    seconds: float
    cpu_s: float
    """CPU time of the busiest rank's process: if near `seconds`, the link was not the bottleneck."""
    sent_bytes: int
    """Bytes counted at the busiest node's interface."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "2.5gbit"], metavar="RATE")
    parser.add_argument("--nodes", type=int, default=5, metavar="N")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES_MB), metavar="MB")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS), metavar="K", help="1 to 4")
    parser.add_argument(
        "--volume-s", type=float, default=1.0, metavar="S", help="minimum time that a case uses the link"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="interleaved rounds")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Markdown and JSON."""
    if given.quick:
        given.rates, given.sizes, given.streams, given.repeats = given.rates[1:2], [1, 4], [1, 2], 1
        given.methods, given.volume_s, given.nodes = given.methods[:3], 0.3, min(given.nodes, 3)
    found: dict[str, dict[str, Any]] = {}
    sections: list[str] = []
    with Rig([Node(cores=2.0, bits_per_s=bits(given.rates[0]))] * given.nodes) as rig:
        for rate in given.rates:
            rig.network.shape([bits(rate)] * given.nodes)
            tcp = plain_tcp(rig)
            cases = cases_for(given, bits(rate))
            timings = _timed(rig, cases, given.repeats)
            sections += ["", *section(bits(rate), given.nodes, tcp, timings)]
            found[rate] = {"plain_tcp_bits_per_s": tcp, "timings": [asdict(one) for one in timings]}
    return "\n".join(["# gloo on shaped links", *sections]), found


def plain_tcp(rig: Rig, seconds: float = 2.0) -> float:
    """Bits of payload per second from node 0 to node 1."""
    command = (sys.executable, "-m", "benchmarks.slow_lan.tcp_rank", str(seconds))
    first, *_ = rig.run([command, command], timeout_s=seconds + 30)
    return float(first.named("tcp")[0].fields["bits_per_s"])


def cases_for(given: argparse.Namespace, bits_per_s: float) -> list[Case]:
    """Every method and size alone, then every method and size in several streams at once.

    Each case sends at least what the link carries in `volume_s`, and at least two buckets per stream with several
    streams.
    """
    cases: list[Case] = []
    for pipelined, streams in ((False, 1), *((True, streams) for streams in given.streams)):
        for size in given.sizes:
            for method in given.methods:
                least = 2 * streams if pipelined else 1
                bucket_bytes = int(size * MB)
                buckets = max(least, round(given.volume_s * bits_per_s / 8 / (2 * bucket_bytes)))
                if pipelined and size * least > max(4 * given.volume_s * bits_per_s / 8 / MB, 8):
                    continue  # minutes at such a low rate, for the result that smaller buckets show
                cases.append(
                    Case(
                        method=method, bucket_bytes=bucket_bytes, buckets=buckets, pipelined=pipelined, streams=streams
                    )
                )
    return cases


def _timed(rig: Rig, cases: Sequence[Case], repeats: int) -> list[Timing]:
    """Rounds of all cases in one start of the processes; medians."""
    asked = json.dumps([asdict(case) for case in cases] * repeats)
    command = (sys.executable, "-m", "benchmarks.slow_lan.transport_rank", asked)
    first, *_ = rig.run([command] * len(rig.nodes), timeout_s=3000)
    rounds = timings_of(first, len(cases))
    return [_median(case, [one[number] for one in rounds]) for number, case in enumerate(cases)]


def timings_of(outcome: Outcome, cases: int) -> list[list[Mapping[str, float]]]:
    """Results per case and round, from rank 0's events."""
    figures = [event.fields for event in outcome.named("case")]
    return [figures[start : start + cases] for start in range(0, len(figures), cases)]


def _median(case: Case, rounds: Sequence[Mapping[str, float]]) -> Timing:
    return Timing(
        case=case,
        seconds=statistics.median(one["seconds"] for one in rounds),
        cpu_s=statistics.median(one["cpu_s"] for one in rounds),
        sent_bytes=int(statistics.median(one["sent"] for one in rounds)),
    )


# ── Report ────────────────────────────────────────────────────────────────────────────────────────


def least_bytes(case: Case, nodes: int) -> float:
    """Minimum that each node must send to sum all buckets of the case: 2 (n-1)/n of them."""
    return 2 * (nodes - 1) / nodes * case.bucket_bytes * case.buckets


def share(timing: Timing, nodes: int, bits_per_s: float) -> float:
    """Fraction of TCP's payload rate, computed from the necessary bytes, not from those that were sent."""
    return least_bytes(timing.case, nodes) * 8 / timing.seconds / (bits_per_s * TCP_SHARE)


def section(bits_per_s: float, nodes: int, tcp: float, timings: Sequence[Timing]) -> list[str]:
    alone = [one for one in timings if not one.case.pipelined]
    at_once = [one for one in timings if one.case.pipelined]
    sizes = sorted({one.case.bucket_bytes for one in timings})
    methods = list(dict.fromkeys(one.case.method for one in timings))
    lines = [
        f"## {nodes} nodes at {written(bits_per_s)}",
        "",
        f"One plain TCP stream: {written(tcp)}, {tcp / bits_per_s / TCP_SHARE:.0%} of TCP's payload rate."
        " Percentages below are relative to the same rate; in brackets the CPU use of the busiest process.",
        "",
        "One bucket after another, one group:",
        "",
        "| | " + " | ".join(f"{size / MB:g} MB" for size in sizes) + " | sent, of the least |",
        "|---" * (len(sizes) + 2) + "|",
    ]
    for method in methods:
        mine = {one.case.bucket_bytes: one for one in alone if one.case.method == method}
        cells = [_cell(mine.get(size), nodes, bits_per_s) for size in sizes]
        sent = max(one.sent_bytes / least_bytes(one.case, nodes) for one in mine.values())
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {sent:.2f}x |")
    lines += ["", "All buckets at once, in 1 or more groups (streams):", ""]
    columns = sorted({(one.case.bucket_bytes, one.case.streams) for one in at_once})
    lines.append("| | " + " | ".join(f"{size / MB:g} MB × {streams}" for size, streams in columns) + " |")
    lines.append("|---" * (len(columns) + 1) + "|")
    for method in methods:
        mine_at_once = {(o.case.bucket_bytes, o.case.streams): o for o in at_once if o.case.method == method}
        cells = [_cell(mine_at_once.get(column), nodes, bits_per_s) for column in columns]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    best = max(timings, key=lambda one: share(one, nodes, bits_per_s))
    usual = max((share(one, nodes, bits_per_s) for one in alone if one.case.method == "all_reduce"), default=0.0)
    lines += ["", f"Best: {_named(best.case)}, {share(best, nodes, bits_per_s):.0%}"]
    if usual:
        lines[-1] += (
            f", {share(best, nodes, bits_per_s) / usual:.2f} times all_reduce one after another at its best size"
        )
    return lines


def _cell(timing: Timing | None, nodes: int, bits_per_s: float) -> str:
    if timing is None:
        return ""
    return f"{share(timing, nodes, bits_per_s):.0%} ({timing.cpu_s / timing.seconds:.0%})"


def _named(case: Case) -> str:
    how = f"{case.streams} streams at once" if case.pipelined else "one after another"
    return f"{case.method}, buckets of {case.bucket_bytes / MB:g} MB, {how}"
