"""Machines of unequal speed: their joint throughput relative to the sum of their own."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from benchmarks.slow_lan.rates import bits, equivalent, parts, written
from benchmarks.slow_lan.rig import Node, Rig
from benchmarks.slow_lan.rounds import Entry, in_turns
from benchmarks.slow_lan.speed import add_task_options, task_of
from benchmarks.slow_lan.train import Trained, Way, parameters, train, train_apart, ways

DEFAULT = ["fp32:--shares equal", "fp32", "int4", "auto"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_task_options(parser)
    parser.set_defaults(samples=70, micro_batch=8, cores=1.2, steps=8)
    parser.add_argument("--speeds", type=float, nargs="+", default=[1, 4, 30], metavar="S", help="one per node")
    parser.add_argument("--sync", nargs="+", default=DEFAULT, metavar="WAY", help="a name, or 'name:--option N'")
    parser.add_argument(
        "--rate", default="1gbit", metavar="RATE", help="of the real link that the rig's links represent"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="interleaved rounds")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    if given.quick:
        given.speeds, given.sync, given.repeats, given.steps, given.samples = [1, 3], given.sync[:2], 1, 5, 16
    nodes, task = len(given.speeds), task_of(given, len(given.speeds))
    cores = parts(given.speeds, given.cores)
    own = [max(task.micro_batch, round(task.samples * one / sum(cores))) for one in cores]
    with Rig([Node(cores=one) for one in cores]) as rig:
        apart = train_apart(rig, task, own)
        total = sum(one.tokens_per_s for one in apart)
        step_s = task.samples * 64 / total
        actual = equivalent(bits(given.rate), 4.0 * parameters(given.data_dir), step_s)
        rig.network.shape([actual] * nodes)

        def one(way: Way, _number: int) -> Trained:
            return train(rig, way, task, nodes)

        entries = in_turns(ways(given.sync), given.repeats, one)
    head = [
        "# Unequal machines",
        "",
        f"Speeds {given.speeds}: {', '.join(f'{one.tokens_per_s:,.0f}' for one in apart)} tokens/s each alone,"
        f" {total:,.0f} in total. Links at {written(bits(given.rate))}: {written(actual)} in the rig.",
        "",
        "| | step | tokens/s | of the sum | x the fastest | sent per node and step |",
        "|---|---|---|---|---|---|",
    ]
    fastest = max(one.tokens_per_s for one in apart)
    return "\n".join([*head, *(_row(entry, total, fastest) for entry in entries)]), {
        "apart": [asdict(one) for one in apart],
        "link_bits_per_s": actual,
        "entries": [asdict(entry) for entry in entries],
    }


def _row(entry: Entry, total: float, fastest: float) -> str:
    step, speed, sent = (entry.spread(figure) for figure in ("step_s", "tokens_per_s", "sent_bytes"))
    if not step or not speed or not sent:
        return f"| {entry.way.name} | {entry.problem[:300]} | | | | |"
    cells = [
        entry.way.name,
        step.text("{:.3f} s".format),
        speed.text("{:,.0f}".format),
        f"**{speed.median / total:.0%}**",
        f"{speed.median / fastest:.2f}x",
        f"{sent.median / 1e6:.3g} MB",
    ]
    return "| " + " | ".join(cells) + " |"
