"""Nodes with several ranks: bytes of each node and seconds of an exchange, each rank for itself and summed in nodes."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.slow_lan.rates import bits, written
from benchmarks.slow_lan.rig import Node, Rig


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """One exchange of all gradients, without a backward pass to hide behind."""

    sync: str
    two_levels: bool
    seconds: float
    sent_bytes: float
    """Bytes that the first node sent."""
    predicted_s: float
    predicted_bytes: float
    """0 without levels: then the cost model does not know that ranks share a link."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sync", nargs="+", default=["fp32", "fp16", "int8", "int4+8"], metavar="WAY")
    parser.add_argument("--nodes", type=int, default=2, metavar="N")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="on each node")
    parser.add_argument("--rate", default="100mbit", metavar="RATE", help="of each node's link")
    parser.add_argument("--parameters", type=float, default=4e6, metavar="N")
    parser.add_argument("--cores", type=float, default=1.0, metavar="C", help="of each node")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    if given.quick:
        given.sync, given.parameters, given.repeats = given.sync[:3], 1e6, 2
    asked = {"ranks": given.ranks, "sync": given.sync, "parameters": given.parameters, "repeats": given.repeats}
    command = (sys.executable, "-m", "benchmarks.slow_lan.shared_nodes_rank", json.dumps(asked))
    with Rig([Node(cores=given.cores, bits_per_s=bits(given.rate))] * given.nodes) as rig:
        first, *_ = rig.run([command] * given.nodes, timeout_s=1200)
    found = summary([event.fields for event in first.named("exchanged")])
    head = [
        f"# {given.nodes} nodes with {given.ranks} ranks each, links at {written(bits(given.rate))},"
        f" {given.parameters / 1e6:g} M parameters",
        "",
        "| | each rank for itself | summed in nodes | sent by a node | of that | predicted | measured of predicted |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows(found)]), {"exchanges": [asdict(one) for one in found]}


def summary(figures: Sequence[Mapping[str, Any]]) -> list[Exchanged]:
    """Medians over the rounds of each case, in the order of their first round."""
    cases = dict.fromkeys((one["sync"], one["two_levels"]) for one in figures)
    found = []
    for sync, two_levels in cases:
        mine = [one for one in figures if (one["sync"], one["two_levels"]) == (sync, two_levels)]
        names = ("seconds", "sent_bytes", "predicted_s", "predicted_bytes")
        medians = {name: statistics.median(one[name] for one in mine) for name in names}
        found.append(Exchanged(sync=sync, two_levels=two_levels, **medians))
    return found


def rows(found: Sequence[Exchanged]) -> list[str]:
    lines = []
    for sync in dict.fromkeys(one.sync for one in found):
        flat, levels = (
            next(one for one in found if (one.sync, one.two_levels) == (sync, way)) for way in (False, True)
        )
        cells = [
            sync, f"{flat.seconds:.3f} s", f"{levels.seconds:.3f} s", f"{levels.sent_bytes / 1e6:.3g} MB",
            f"{levels.sent_bytes / flat.sent_bytes:.0%}",
            f"{levels.predicted_s:.3f} s, {levels.predicted_bytes / 1e6:.3g} MB",
            f"{levels.seconds / levels.predicted_s:.2f}, {levels.sent_bytes / levels.predicted_bytes:.2f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines
