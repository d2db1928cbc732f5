"""Measure the speed of each sync method by number of nodes and link rate, relative to the best single node.

Rates are stated for real links and scaled, so that the ratio of transfer to computing time equals that of GPT-2 124M
with 17.5 s of computing, a laptop GPU's share of half a million tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Spread
from benchmarks.slow_lan.rates import bits, written
from benchmarks.slow_lan.rig import Node, Rig
from benchmarks.slow_lan.rounds import Entry, in_turns
from benchmarks.slow_lan.train import Scale, Task, Trained, Way, scale, train, ways

RUNGS = ("fp32", "fp16", "int8", "int4", "int2", "powersgd", "topk", "local", "diloco", "auto")


@dataclass(frozen=True, kw_only=True)
class Point:
    """All sync methods at one number of nodes and one rate."""

    nodes: int
    named: tuple[float, ...]
    """Bits per second of each node's real link."""
    actual: tuple[float, ...]
    """Measured values of the rig."""
    share_s: float
    """Seconds of computing in a step of one node."""
    alone_tokens_per_s: float
    """Speed of one node alone while the others train too, each alone."""
    resting_tokens_per_s: float
    """Speed of one node alone while the others are idle."""
    entries: Sequence[Entry]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_task_options(parser)
    parser.add_argument("--sync", nargs="+", default=list(RUNGS), metavar="WAY", help="a name, or 'name:--option N'")
    parser.add_argument(
        "--rates", nargs="+", default=["100mbit", "1gbit", "2.5gbit", "1gbit,100mbit"], metavar="RATE",
        help="of all nodes; or, after a comma, of the last ones: 1gbit,100mbit has its last node on a slow link",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 5], metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="interleaved rounds")


def add_task_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, required=True, help="of `gpt2 prepare`, with --vocab-size 4096")
    parser.add_argument("--samples", type=int, default=64, metavar="N", help="of 64 tokens, per node and step")
    parser.add_argument("--micro-batch", type=int, default=16, metavar="N")
    parser.add_argument("--steps", type=int, default=23, metavar="N")
    parser.add_argument("--cores", type=float, default=0.32, metavar="C", help="of each node")
    parser.add_argument("--options", default="", metavar="WORDS", help="of the trainer, in one word: ' --lr 2e-3'")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="of one run")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    if given.quick:
        given.sync, given.rates, given.nodes = given.sync[:2], given.rates[:1], given.nodes[:1]
        given.repeats, given.steps, given.samples = 1, 5, 16
    points: list[Point] = []
    with Rig([Node(cores=given.cores)] * max(given.nodes)) as rig:
        for nodes in given.nodes:
            task = task_of(given, nodes)
            found = scale(rig, task, nodes)
            for rate in given.rates:
                points.append(point(rig, found, task, links(rate, nodes), (ways(given.sync), given.repeats)))
    return "\n".join(["# Speed", *(line for one in points for line in section(one))]), {
        "points": [asdict(one) for one in points]
    }


def links(text: str, nodes: int) -> tuple[float, ...]:
    """Bits per second of each node: further rates belong to the last nodes, the first one to all others."""
    usual, *own = (bits(word) for word in text.split(","))
    if len(own) >= nodes:
        raise ValueError(f"{text}: more rates than {nodes} nodes")
    return (usual,) * (nodes - len(own)) + tuple(own)


def task_of(given: argparse.Namespace, nodes: int) -> Task:
    return Task(
        data_dir=given.data_dir, samples=given.samples * nodes, micro_batch=given.micro_batch, steps=given.steps,
        timeout_s=given.timeout, options=tuple(given.options.split()),
    )  # fmt: skip


def point(rig: Rig, found: Scale, task: Task, named: tuple[float, ...], contest: tuple[Sequence[Way], int]) -> Point:
    """`named`: a rate for each node. `contest`: who takes part, and in how many rounds."""
    actual, nodes = tuple(map(found.rate, named)), found.nodes
    rig.network.shape([*actual, *[actual[0]] * (len(rig.nodes) - nodes)])

    def one(way: Way, _number: int) -> Trained:
        return train(rig, way, task, nodes)

    return Point(
        nodes=nodes, named=named, actual=actual, share_s=found.share_s, alone_tokens_per_s=found.alone.tokens_per_s,
        resting_tokens_per_s=found.resting.tokens_per_s,
        entries=in_turns(*contest, one),
    )  # fmt: skip


def section(point: Point) -> list[str]:
    """Ratios are relative to one node that does the same work alone."""
    fp32 = next((entry.spread("sent_bytes") for entry in point.entries if entry.way.name in ("fp32", "ddp")), None)
    lines = [
        "",
        f"## {point.nodes} nodes at {each(point.named)}",
        "",
        f"The rig's links: {each(point.actual)}. A node computes {point.share_s:.2f} s of each step;"
        f" one alone trains {point.alone_tokens_per_s:,.0f} tokens/s while the others do the same"
        f" ({point.resting_tokens_per_s:,.0f} while they are idle).",
        "",
        "| | step | tokens/s | x one node | others idle | sent per node and step | of fp32 | link utilization"
        " | forecast | loss |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [row(entry, point, fp32) for entry in point.entries]


def row(entry: Entry, point: Point, fp32: Spread | None) -> str:
    step, speed, sent = (entry.spread(figure) for figure in ("step_s", "tokens_per_s", "sent_bytes"))
    if not step or not speed or not sent:
        return f"| {entry.way.name} | {_safe(entry.problem)} |" + " |" * 8
    forecast, loss = entry.spread("forecast_s"), entry.spread("loss")
    chosen = {run.chosen for run in entry.runs if run.chosen} - {entry.way.name}
    name = entry.way.name + (f" ({', '.join(sorted(chosen))})" if chosen else "")
    cells = [
        name,
        step.text("{:.3f} s".format),
        speed.text("{:,.0f}".format),
        f"**{speed.median / point.alone_tokens_per_s:.2f}x**",
        f"{speed.median / point.resting_tokens_per_s:.2f}x",
        f"{sent.median / 1e6:.3g} MB",
        f"1/{fp32.median / sent.median:.3g}" if fp32 and sent.median else "",
        f"{sent.median * 8 / step.median / min(point.actual):.0%}",
        f"{forecast.median:.3f} s ({forecast.median / step.median - 1:+.0%})" if forecast else "",
        loss.text("{:.4f}".format) if loss else "",
    ]
    return "| " + " | ".join(cells) + " |" + (f" then {_safe(entry.problem)}" if entry.problem else "")


def each(rates: Sequence[float]) -> str:
    """Rates of links, with equal ones counted: `4 of 1 Gbit/s, 1 of 100 Mbit/s`."""
    if len(set(rates)) == 1:
        return written(rates[0])
    return ", ".join(f"{rates.count(rate)} of {written(rate)}" for rate in dict.fromkeys(rates))


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
