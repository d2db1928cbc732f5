"""Machines and rungs for tests of the forecast: GPT-2 124M on laptops with a small GPU."""

from __future__ import annotations

from collections.abc import Sequence

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost

GIGABIT = 941e6 / 8
"""Bytes per second of TCP on gigabit Ethernet."""
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")


def node(rank: int, *, sample_s: float = 0.0215, step_s: float = 0.0, link: float = GIGABIT) -> NodeSpeed:
    name = NAMES[rank] if rank < len(NAMES) else f"node{rank}"
    return NodeSpeed(node=name, rank=rank, sample_s=sample_s, step_s=step_s, upload=link, download=link)


def costs() -> tuple[SyncCost, ...]:
    return (
        cost("fp32", 4.0),
        cost("fp16", 2.0, codec=1e-10),
        cost("int8", 1.02, codec=2e-10),
        cost("int4", 0.52, codec=2e-10),
        cost("diloco", 4.0, every=50, proven=False),
    )


def cost(sync: str, size: float, *, codec: float = 0.0, every: int = 1, proven: bool = True) -> SyncCost:
    return SyncCost(
        sync=sync,
        bytes_per_parameter=size,
        codec_s_per_parameter=codec,
        collectives=4,
        every=every,
        overlap=0.0,
        pattern="ring" if sync == "fp32" else "scatter_gather",
        proven=proven,
    )


def measured(nodes: Sequence[NodeSpeed], *, samples_per_step: int, parameters: int = 124_439_808) -> Measurement:
    return Measurement(
        nodes=tuple(nodes),
        latency_s=0.0005,
        parameters=parameters,
        samples_per_step=samples_per_step,
        units_per_sample=128,
        unit="tokens",
        costs=costs(),
    )
