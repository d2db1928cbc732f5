"""The ranks of one node of the `shared-nodes` benchmark: `python -m benchmarks.slow_lan.shared_nodes_rank ASKED`."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from benchmarks.slow_lan.network import sent_and_received
from contract.cost_model.measurement import Measurement
from contract.cost_model.step_time import exchanged, node_set, step_s
from trainer.config import RankInfo, TrainOptions
from trainer.engine.autotune.measure import Own, Work, measure
from trainer.engine.group import Group
from trainer.engine.process_group import join, leave
from trainer.engine.sync import methods

LAYERS = 16
OPTIONS = TrainOptions()


def start(asked: Mapping[str, Any]) -> int:
    """Start this node's ranks, and wait for them; the node is one rank of the rig."""
    node, nodes, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(asked["ranks"])
    started = []
    for local in range(ranks):
        place = {
            "RANK": node * ranks + local,
            "WORLD_SIZE": nodes * ranks,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": ranks,
        }
        environ = os.environ | {name: str(number) for name, number in place.items()}
        started.append(subprocess.Popen([sys.executable, "-m", __spec__.name, json.dumps(asked), "rank"], env=environ))
    return max(abs(process.wait()) for process in started)


def rank(asked: Mapping[str, Any]) -> int:
    place = RankInfo.from_environ(os.environ)
    torch.manual_seed(0)
    width = round((asked["parameters"] / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    with join(place, torch.device("cpu"), "gloo") as group:
        work = Work(model=model, samples_per_step=place.world_size, units_per_sample=1.0, unit="samples")
        measured = measure(Own(sample_s=0.0, step_s=0.0, micro_batch=1), work, OPTIONS, group)
        for sync in asked["sync"]:
            for two_levels in (False, True):
                among = group if two_levels else replace(group, nodes=tuple(range(place.world_size)))
                _case(sync, model, among, measured, repeats=asked["repeats"], two_levels=two_levels)
        group.barrier()
    return leave(place, 0)


def _case(name: str, model: nn.Module, group: Group, measured: Measurement, *, repeats: int, two_levels: bool) -> None:
    model = copy.deepcopy(model)  # DDP leaves hooks on its parameters
    context = methods.SyncContext(model=model, optimizer=SGD(model.parameters()), options=OPTIONS, group=group)
    sync = methods.build(name, context, 0, static_graph=False)
    predicted_s = predicted_bytes = 0.0
    if two_levels:
        together, cost = node_set(measured.nodes, measured.samples_per_step, equal=True), measured.cost(name)
        predicted_s = step_s(measured, together, cost) - measured.latency_s  # of the statistics, which are not here
        predicted_bytes = exchanged(measured, together, cost)
    x = torch.randn(1, next(model.parameters()).shape[1])
    for number in range(repeats + 1):
        group.barrier()
        began, sent = time.perf_counter(), _sent()
        with sync.gradients(last=True):
            sync.model(x).square().mean().backward()
        sync.finish()
        group.barrier()
        seconds = time.perf_counter() - began
        if number and group.place.rank == 0:  # the first one connects
            values = {
                "event": "exchanged", "sync": name, "two_levels": two_levels, "seconds": seconds,
                "sent_bytes": _sent() - sent, "predicted_s": predicted_s, "predicted_bytes": predicted_bytes,
            }  # fmt: skip
            print("@orch " + json.dumps(values), flush=True)
    sync.close()


def _sent() -> int:
    return sent_and_received(Path("/proc/self/net/dev").read_text())[0]


def main(argv: Sequence[str]) -> int:
    asked = json.loads(argv[0])
    return rank(asked) if argv[1:] == ["rank"] else start(asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
