"""Check that a training fits into the memory of its nodes, and with which options. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from contract.cost_model.memory import MemoryForecast, TransformerTraining, forecast_memory, smaller, words_of
from orchestrator.plan.ranks import device_of, nproc_of
from orchestrator.specs.container_limits import limits_of
from orchestrator.specs.errors import PreflightError
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.request import LaunchRequest


@dataclass(frozen=True, kw_only=True)
class _NodeMemory:
    """A node whose container the kernel ends when it exceeds its limit."""

    node: str
    first: bool
    ranks: int
    world_size: int
    limit_mib: int

    def forecast(self, training: TransformerTraining) -> MemoryForecast:
        return forecast_memory(training, ranks=self.ranks, world_size=self.world_size, first=self.first)

    def holds(self, training: TransformerTraining, *, exactly: bool = False) -> bool:
        """Return whether it fits, also if the forecast is somewhat too low; `exactly`: only if it is not."""
        forecast = self.forecast(training)
        return (forecast.total_mib if exactly else forecast.needed_mib) <= self.limit_mib


def fit_memory(
    request: LaunchRequest, order: Sequence[NodeSpec], facts: Mapping[str, NodeFacts]
) -> tuple[LaunchRequest, str]:
    """The request with options that make its training fit into every node, and a note where some were added.

    `order`: the nodes by node_rank. PreflightError: it does not fit, whatever the options. Without sizes of the
    training there is no forecast, nor for nodes with GPUs, where the trainer itself finds what fits, nor for processes,
    which have no limit.
    """
    nodes = _limited(order, facts)
    if request.sizes is None or not nodes:
        return request, ""
    ways = list(smaller(request.sizes))
    chosen = next((way for way in ways if all(node.holds(way) for node in nodes)), ways[-1])
    for node in nodes:
        if not node.holds(chosen, exactly=True):
            raise _does_not_fit(node, chosen)
    words = words_of(request.sizes, chosen)
    return replace(request, command=(*request.command, *words)), _note(nodes, request.sizes, words)


def _limited(order: Sequence[NodeSpec], facts: Mapping[str, NodeFacts]) -> list[_NodeMemory]:
    ranks = [nproc_of(node, facts[node.name]) for node in order]
    return [
        _NodeMemory(
            node=node.name,
            first=node is order[0],
            ranks=own,
            world_size=sum(ranks),
            limit_mib=limits_of(node, facts[node.name]).memory_mib,
        )
        for node, own in zip(order, ranks, strict=True)
        if node.engine == "docker" and device_of(node, facts[node.name]) == "cpu" and not facts[node.name].assumed
    ]


def _note(nodes: Sequence[_NodeMemory], asked: TransformerTraining, words: tuple[str, ...]) -> str:
    if not words:
        return ""
    worst = max(nodes, key=lambda node: node.forecast(asked).needed_mib - node.limit_mib)
    forecast = worst.forecast(asked)
    return (
        f"{shlex.join(words)} is added, so that the training fits into {worst.node}'s memory limit of"
        f" {worst.limit_mib} MiB (forecast without it: {forecast.total_mib} MiB: {forecast});"
        " the samples of a step stay the same"
    )


def _does_not_fit(node: _NodeMemory, training: TransformerTraining) -> PreflightError:
    forecast = node.forecast(training)
    ways = [
        f"in the inventory: limits: {{memory: {-(-forecast.needed_mib // 1024)}g}} at {node.node}, if it has so much"
    ]
    if training.fixed:
        ways.append(f"or leave out --{training.fixed[0].replace('_', '-')}")
    ways.append("or a smaller model (--preset, --width, --seq-len)")
    return PreflightError(
        f"the training would exceed its memory limit of {node.limit_mib} MiB: the forecast is {forecast.total_mib} MiB"
        f" ({forecast}) with micro-batches of {training.micro_batch}",
        node=node.node,
        hint=", ".join(ways),
    )
