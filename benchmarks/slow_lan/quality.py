"""Effect of each sync method on the loss: the same tokens, several seeds, links as fast as the machine.

The spread is over seeds; a method is compared with fp32 per seed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.slow_lan.rates import bits
from benchmarks.slow_lan.rig import Node, Rig
from benchmarks.slow_lan.rounds import Entry, in_turns
from benchmarks.slow_lan.speed import RUNGS, add_task_options, task_of
from benchmarks.slow_lan.train import Trained, Way, train, ways


def add_options(parser: argparse.ArgumentParser) -> None:
    add_task_options(parser)
    parser.set_defaults(steps=300, samples=8, micro_batch=8, cores=2.0)
    parser.add_argument("--sync", nargs="+", default=[name for name in RUNGS if name != "auto"], metavar="WAY")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--nodes", type=int, default=5, metavar="N")
    parser.add_argument("--rate", metavar="RATE", help="of the links, as it is, for loss against time; default: none")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    if given.quick:
        given.sync, given.seeds, given.steps, given.nodes = given.sync[:2], given.seeds[:1], 6, 2
    task = replace(task_of(given, given.nodes), evaluate=True)
    rate = bits(given.rate) if given.rate else None
    with Rig([Node(cores=given.cores, bits_per_s=rate)] * given.nodes) as rig:

        def one(way: Way, number: int) -> Trained:
            return train(rig, way, replace(task, seed=given.seeds[number]), given.nodes)

        entries = in_turns(ways(given.sync), len(given.seeds), one)
    head = f"{given.nodes} nodes, {given.steps} steps of {task.samples} samples, seeds {given.seeds}"
    return "\n".join(["# Loss at equal tokens", "", head, "", *table(entries)]), {
        "entries": [asdict(entry) for entry in entries]
    }


def table(entries: Sequence[Entry]) -> list[str]:
    lines = ["| | loss, mean (min–max) | relative to fp32, mean (min–max) | sent per node and step | seconds |"]
    lines += ["|---|---|---|---|---|"]
    reference = next((entry for entry in entries if entry.way.name in ("fp32", "ddp")), None)
    for entry in entries:
        losses = [run.loss for run in entry.runs if run.loss is not None]
        if not losses:
            lines.append(f"| {entry.way.name} | {entry.problem[:300]} | | | |")
            continue
        apart = differences(entry.runs, reference.runs if reference else ())
        cells = [
            entry.way.name,
            f"{statistics.mean(losses):.4f} ({min(losses):.4f}–{max(losses):.4f})",
            f"{statistics.mean(apart):+.2%} ({min(apart):+.2%}–{max(apart):+.2%})" if apart else "",
            f"{statistics.median(run.sent_bytes for run in entry.runs) / 1e6:.3g} MB",
            f"{statistics.median(run.seconds for run in entry.runs):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def differences(runs: Sequence[Trained], reference: Sequence[Trained]) -> list[float]:
    """Differences of the losses relative to the reference, per seed."""
    pairs = [(a.loss, b.loss) for a, b in zip(runs, reference, strict=False)]
    return [a / b - 1 for a, b in pairs if a is not None and b]
