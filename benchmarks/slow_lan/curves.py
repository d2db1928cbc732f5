"""Simulate GPT-2 124M on 2 to 64 nodes, by sync method and link rate, from the encoding cost on this machine.

The cost model is that of the trainer's forecast; `speed` compares it with measurements.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.slow_lan.rates import GPT2_STEP_S, TCP_SHARE, bits, written
from benchmarks.slow_lan.simulate import Simulated, simulate
from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost

SAMPLES = 512
"""Samples of 1,024 tokens: half a million in a step."""
OF_A_NODE = SAMPLES / 5
"""Samples that a node computes in GPT2_STEP_S."""
EFFICIENCY = {"ring": 0.97, "scatter_gather": 0.88}
"""Fraction of TCP's payload rate: `transport`, five nodes at 1 Gbit/s, 4 streams."""
RANK = 32
"""Rank of PowerSGD: matrices of 768 rows and more have room for it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "2.5gbit"], metavar="RATE")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 5, 8, 16, 32, 64], metavar="N")
    parser.add_argument("--latency-ms", type=float, default=0.5, metavar="MS", help="of one round")


def run(given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    parameters, costs = _costs()
    node = NodeSpeed(
        node="node", rank=0, sample_s=GPT2_STEP_S / OF_A_NODE, step_s=0.0, upload=1.0, download=1.0, micro_batch=8
    )
    measured = Measurement(
        nodes=(node,), latency_s=given.latency_ms / 1e3, parameters=parameters, samples_per_step=SAMPLES,
        units_per_sample=1024, unit="tokens", costs=costs,
    )  # fmt: skip
    found = simulate(measured, given.nodes, [bits(rate) / 8 * TCP_SHARE for rate in given.rates])
    lines = ["# GPT-2 124M, half a million tokens in a step, times one node (simulated)"]
    for rate in given.rates:
        lines += table(rate, given.nodes, [one for one in found if one.link == bits(rate) / 8 * TCP_SHARE])
    return "\n".join(lines), {"simulated": [asdict(one) for one in found]}


def table(rate: str, nodes: Sequence[int], found: Sequence[Simulated]) -> list[str]:
    lines = ["", f"## Links of {written(bits(rate))}", "", "| | " + " | ".join(f"{n} nodes" for n in nodes) + " |"]
    lines.append("|---" * (len(nodes) + 1) + "|")
    for sync in dict.fromkeys(one.row.sync for one in found):
        speed = {one.world_size: one.row.speedup for one in found if one.row.sync == sync}
        lines.append(f"| {sync} | " + " | ".join(f"{speed[n]:.2f}" for n in nodes) + " |")
    return lines


def _costs() -> tuple[int, tuple[SyncCost, ...]]:
    """Parameters of the model and cost of each sync method, encoding measured as with five nodes."""
    import torch

    from trainer.config import RankInfo, TrainOptions
    from trainer.engine.autotune.measure import codec_s
    from trainer.engine.group import Group
    from trainer.engine.sync.buckets import Bucket
    from trainer.engine.sync.methods import ladder
    from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

    shape = Gpt2Shape(vocab_size=50257, seq_len=1024, layers=12, heads=12, width=768)
    with torch.device("meta"):
        model = GPT2(shape, 0.0, Computation())
    five = Group(place=RankInfo(world_size=5), backend="gloo", device=torch.device("cpu"))
    like = Bucket([torch.nn.Parameter(torch.empty(768, 3072)), torch.nn.Parameter(torch.empty(3072))])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, tuple(
        SyncCost(
            sync=rung.name, bytes_per_parameter=rung.bytes_per_parameter,
            codec_s_per_parameter=codec_s(rung, like, five) / like.count, collectives=rung.collectives,
            every=rung.every, overlap=rung.overlap, pattern=rung.pattern, efficiency=EFFICIENCY[rung.pattern],
            proven=rung.proven,
        )
        for rung in ladder(TrainOptions(sync_rank=RANK), model)
    )  # fmt: skip
