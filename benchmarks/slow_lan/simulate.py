"""Predictions for more nodes like the average one, and for other links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import harmonic_mean, mean

from contract.cost_model.measurement import Measurement, NodeSpeed
from contract.cost_model.node_sets import best_alone, node_sets
from contract.cost_model.step_time import StepTime, step_time


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Predicted step of a simulated cluster."""

    world_size: int
    link: float
    """Bytes per second of every node, both ways."""
    row: StepTime


def simulate(measured: Measurement, world_sizes: Sequence[int], links: Sequence[float]) -> tuple[Simulated, ...]:
    """Predict every sync method at every number of nodes and link rate (bytes per second), with the same samples in a
    step; the speed-up is relative to one such node.

    A node like the average one computes as many samples per second as the measured ones do on average.
    CostModelError: fewer samples in a step than nodes.
    """
    return tuple(
        Simulated(world_size=size, link=link, row=simulated)
        for link in links
        for size in world_sizes
        for simulated in _rows(replace(measured, nodes=tuple(_average(measured, rank, link) for rank in range(size))))
    )


def _rows(measured: Measurement) -> list[StepTime]:
    single = best_alone(measured)
    together = node_sets(measured)[0] if len(measured.nodes) > 1 else single
    return [step_time(measured, together, cost, single.compute_s) for cost in measured.costs]


def _average(measured: Measurement, rank: int, link: float) -> NodeSpeed:
    return NodeSpeed(
        node=f"node{rank}",
        rank=rank,
        sample_s=harmonic_mean([node.sample_s for node in measured.nodes]),
        step_s=mean(node.step_s for node in measured.nodes),
        upload=link,
        download=link,
        micro_batch=round(mean(node.micro_batch for node in measured.nodes)),
    )
