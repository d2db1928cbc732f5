"""Compare other sync methods with ours: same model, data, order, learning rates and links; speed, bytes and loss.

`orch_hooks` stands among the peers: a plain DDP script with one more line, without the trainer's loop.

torchft and hivemind need their packages (`pip install -r benchmarks/requirements.txt`); the others are in torch.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

from benchmarks.slow_lan.rig import Node, Rig
from benchmarks.slow_lan.speed import add_task_options, links, point, section, task_of
from benchmarks.slow_lan.train import Way, scale, ways

EVERY = 10
PEERS = (
    Way(name="ddp", options=("--peer", "ddp"), peer=True),
    Way(name="ddp, fp16 hook", options=("--peer", "fp16"), peer=True),
    Way(name="ddp, PowerSGD hook", options=("--peer", "powersgd"), peer=True),
    Way(name="ddp, orch_hooks auto", options=("--peer", "orch-hooks"), peer=True),
    Way(name="ddp, orch_hooks int8", options=("--peer", "orch-hooks", "--hook-sync", "int8"), peer=True),
    Way(name="post-local SGD", options=("--peer", "post-local-sgd", "--every", str(EVERY)), peer=True, every=EVERY),
    Way(name="torchft DiLoCo", options=("--peer", "torchft", "--every", str(EVERY)), peer=True, every=EVERY),
    Way(name="hivemind", options=("--peer", "hivemind"), peer=True),
)
NEEDS = {"torchft DiLoCo": "torchft", "hivemind": "hivemind"}
OURS = ["fp32", "fp16", "int4", "auto"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_task_options(parser)
    parser.add_argument("--sync", nargs="*", default=OURS, metavar="WAY", help="ours beside them; none: only peers")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these peers alone")
    parser.add_argument("--rates", nargs="+", default=["1gbit"], metavar="RATE")
    parser.add_argument("--nodes", type=int, default=5, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="interleaved rounds")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    if given.quick:
        given.only, given.sync = [PEERS[0].name, PEERS[1].name], given.sync[:1]
        given.nodes, given.repeats, given.steps, given.samples = 2, 1, 5, 16
    named = [peer for peer in PEERS if not given.only or peer.name in given.only]
    missing = [peer.name for peer in named if find_spec(NEEDS.get(peer.name, "torch")) is None]
    chosen = [peer for peer in named if peer.name not in missing] + ways(given.sync)
    points = []
    with Rig([Node(cores=given.cores)] * given.nodes) as rig:
        task = task_of(given, given.nodes)
        found = scale(rig, task, given.nodes)
        for rate in given.rates:
            points.append(
                point(rig, found, replace(task, evaluate=True), links(rate, given.nodes), (chosen, given.repeats))
            )
    lines = ["# Peers", *(line for one in points for line in section(one))]
    lines += ["", *(f"- {name}: not installed" for name in missing)]
    return "\n".join(lines), {"points": [asdict(one) for one in points], "missing": missing}
