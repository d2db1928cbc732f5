"""Capacity plan: step time by number of nodes and sync method, effect of each node, effect of a larger batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.cost_model.choice import AUTO, WORTH, choose_sync
from contract.cost_model.measurement import CostModelError, Measurement, NodeSpeed, SyncCost
from contract.cost_model.node_sets import NEARLY, best_alone, best_node_set, node_sets
from contract.cost_model.shares import micro_batches
from contract.cost_model.step_time import StepTime, node_set, step_s, step_time

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of larger batches, as multiples of the step of the query."""
ENOUGH = 0.9
"""Share of the speed of the largest batch: more gradient accumulation gains little."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """Question to the cost model: nodes, sync method and size of a step."""

    sync: str = AUTO
    """A sync method, or AUTO: all proven ones."""
    equal: bool = False
    """True if all nodes have equal shares, whatever their speeds."""
    among: tuple[str, ...] = ()
    """Nodes to choose from; empty: all that were measured."""
    samples_per_step: int | None = None
    """None: that of the measurement."""
    samples: int | None = None
    """Samples of the whole training; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class NodeEffect:
    """Step time with and without one node, and its share of a step."""

    node: str
    taken: bool
    effect: str
    """`helps`, `hurts` or `makes no difference` to the chosen nodes."""
    with_s: float
    """Seconds of a step with it, by the best sync method."""
    without_s: float
    """Seconds of a step without it; 0 if no node would be left."""
    alone_s: float
    """Seconds of the whole step by this node alone."""
    share: int
    """Samples of this node in a step, so that all nodes finish together; 0 if it is not chosen."""
    micro_batch: int
    """Samples in one forward pass: equal passes, none larger than measured."""
    passes: int
    """Forward passes of a step."""


@dataclass(frozen=True, kw_only=True)
class LargerBatch:
    """Step of more samples: the exchange stays the same."""

    multiple: int
    samples_per_step: int
    row: StepTime
    """The best nodes and sync method for this step."""
    efficiency: float
    """Speed divided by the sum of all nodes' speeds."""


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """Answer to a query."""

    unit: str
    units_per_sample: float
    samples_per_step: int
    samples: int | None
    alone: StepTime
    """The best single node."""
    chosen: StepTime
    by_size: tuple[StepTime, ...]
    """The best sync method and set for each number of nodes."""
    rows: tuple[StepTime, ...]
    """Every sync method with every number of nodes from 2."""
    members: tuple[NodeEffect, ...]
    larger: tuple[LargerBatch, ...]
    enough: int
    """Samples of the smallest step that reaches ENOUGH of the speed of the fastest."""
    warnings: tuple[str, ...]

    def finish_s(self, row: StepTime) -> float | None:
        """Seconds of the whole training; None where its length is unknown."""
        return None if self.samples is None else self.samples / self.samples_per_step * row.step_s

    def chosen_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        """The chosen nodes, each once, of the nodes with these names."""
        return tuple(dict.fromkeys(node_of(label, names) for label in self.chosen.nodes))


def plan_capacity(measured: Measurement, query: Query) -> CapacityPlan:
    """Answer a query. CostModelError: an unknown sync method or node, or fewer samples in a step than nodes."""
    measured = _asked_for(measured, query)
    found = choose_sync(measured, equal=query.equal)
    alone = found.rows[0]
    rows = _rows(measured, alone, equal=query.equal)
    chosen = found.chosen if query.sync == AUTO else _chosen(measured, query, alone)
    larger = tuple(_larger(measured, query, multiple) for multiple in MULTIPLES)
    fastest = max(each.row.per_s for each in larger)
    shares = dict(zip(chosen.ranks, chosen.shares, strict=True))
    return CapacityPlan(
        unit=measured.unit,
        units_per_sample=measured.units_per_sample,
        samples_per_step=measured.samples_per_step,
        samples=query.samples,
        alone=alone,
        chosen=chosen,
        by_size=_by_size(rows, alone, query.sync),
        rows=rows,
        members=tuple(_member(measured, query, node, shares) for node in measured.nodes),
        larger=larger,
        enough=next(each.samples_per_step for each in larger if each.row.per_s >= ENOUGH * fastest),
        warnings=found.warnings,
    )


def _asked_for(measured: Measurement, query: Query) -> Measurement:
    nodes = measured.nodes
    if query.among:
        names = [node_of(node.node, query.among) for node in nodes]
        if unknown := set(query.among) - set(names):
            raise CostModelError(f"not measured: {', '.join(sorted(unknown))}")
        nodes = tuple(node for node, name in zip(nodes, names, strict=True) if name in query.among)
    samples = query.samples_per_step or measured.samples_per_step
    if query.sync != AUTO:
        measured.cost(query.sync)
    return replace(measured, nodes=nodes, samples_per_step=samples, links=())


def node_of(label: str, names: Collection[str]) -> str:
    """Return the node of a rank's label: `alpha` for `alpha`, and for `alpha.1` unless a node has that name."""
    return label if label in names else label.rpartition(".")[0]


def _open(measured: Measurement, sync: str) -> list[SyncCost]:
    """Return the sync methods to choose from."""
    return [cost for cost in measured.costs if (cost.proven if sync == AUTO else cost.sync == sync)]


def _rows(measured: Measurement, alone: StepTime, *, equal: bool) -> tuple[StepTime, ...]:
    candidates = node_sets(measured, equal=equal)
    by_size = [
        [candidate for candidate in candidates if len(candidate.members) == size]
        for size in range(2, len(measured.nodes) + 1)
    ]
    return tuple(
        step_time(measured, best_node_set(measured, of_size, cost), cost, alone.step_s)
        for of_size in by_size
        if of_size
        for cost in measured.costs
    )


def _by_size(rows: Sequence[StepTime], alone: StepTime, sync: str) -> tuple[StepTime, ...]:
    open_to_us = [each for each in rows if (each.proven if sync == AUTO else each.sync == sync)]
    sizes = sorted({len(each.nodes) for each in open_to_us})
    return alone, *(
        max((each for each in open_to_us if len(each.nodes) == size), key=lambda each: each.per_s) for size in sizes
    )


def _chosen(measured: Measurement, query: Query, alone: StepTime) -> StepTime:
    """Return the best set for the sync method of the query; one node if no set is faster."""
    candidates = node_sets(measured, equal=query.equal)
    if not candidates:
        return alone
    cost = measured.cost(query.sync)
    best = step_time(measured, best_node_set(measured, candidates, cost), cost, alone.step_s)
    return best if best.per_s >= WORTH * alone.per_s else alone


def _best_s(measured: Measurement, query: Query, members: Sequence[NodeSpeed]) -> float:
    """Seconds of a step of exactly these nodes, by their best sync method."""
    if not members:
        return 0.0
    if len(members) == 1:
        return node_set(members, measured.samples_per_step).compute_s
    together = node_set(members, measured.samples_per_step, equal=query.equal)
    return min(step_s(measured, together, cost) for cost in _open(measured, query.sync) or measured.costs)


def _member(measured: Measurement, query: Query, node: NodeSpeed, shares: Mapping[int, int]) -> NodeEffect:
    """Return the effect of a node on the other chosen nodes, or on the best single node if there are none. `shares`:
    those of the chosen nodes, by rank."""
    others = [each for each in measured.nodes if each.rank in shares and each is not node]
    with_it = sorted([*others, node], key=lambda each: each.rank)
    without_s = _best_s(measured, query, others)
    if not others and len(measured.nodes) > 1:
        rest = tuple(each for each in measured.nodes if each is not node)
        without_s = best_alone(replace(measured, nodes=rest)).compute_s
    with_s = _best_s(measured, query, with_it)
    share = shares.get(node.rank, 0)
    micro_batch, passes = micro_batches(share, node.micro_batch)
    return NodeEffect(
        node=node.node,
        taken=node.rank in shares,
        effect=_effect(with_s, without_s),
        with_s=with_s,
        without_s=without_s,
        alone_s=node_set([node], measured.samples_per_step).compute_s,
        share=share,
        micro_batch=micro_batch,
        passes=passes,
    )


def _effect(with_s: float, without_s: float) -> str:
    if not without_s or with_s < NEARLY * without_s:
        return "helps"
    return "hurts" if NEARLY * with_s > without_s else "makes no difference"


def _larger(measured: Measurement, query: Query, multiple: int) -> LargerBatch:
    grown = replace(measured, samples_per_step=multiple * measured.samples_per_step)
    single = best_alone(grown)
    best = step_time(grown, single, None, single.compute_s)
    for candidate in node_sets(grown, equal=query.equal):
        for cost in _open(grown, query.sync):
            found = step_time(grown, candidate, cost, single.compute_s)
            best = found if found.per_s > best.per_s else best
    joint = sum(1 / node.sample_s for node in grown.nodes) * grown.units_per_sample
    return LargerBatch(
        multiple=multiple, samples_per_step=grown.samples_per_step, row=best, efficiency=min(1.0, best.per_s / joint)
    )
