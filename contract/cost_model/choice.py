"""Choose the sync method of a run, and its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.cost_model.advice import Comparison, LeftOut, left_out, warnings
from contract.cost_model.measurement import Measurement
from contract.cost_model.node_sets import best_alone, best_node_set, node_sets
from contract.cost_model.step_time import StepTime, step_time

WORTH = 1.05
"""Speed-up that a method needs to be preferred to a more exact one, and several nodes to be preferred to one."""
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class SyncChoice:
    """Predicted steps of all sync methods, and the chosen one."""

    measured: Measurement
    rows: tuple[StepTime, ...]
    """The best single node, then each sync method with its best nodes, the most exact method first; the first and the
    chosen method also with all nodes."""
    chosen: StepTime
    best_node: str
    """The best single node."""
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]


def choose_sync(measured: Measurement, *, sync: str = AUTO, unproven: bool = False, equal: bool = False) -> SyncChoice:
    """Predict a step of each sync method and choose one.

    `sync`: a sync method, used with all nodes; `auto` chooses the most exact proven method that is nearly as fast as
    the fastest, and several nodes only where they are faster than the best single node. `unproven`: `auto` may choose
    unproven methods. `equal`: equal shares, whatever the speeds.
    CostModelError: an unknown sync method, or fewer samples in a step than nodes.
    """
    if sync != AUTO:
        measured.cost(sync)
    single = best_alone(measured)
    alone = step_time(measured, single, None, single.compute_s)
    served, everyone = _rows(measured, alone, equal=equal)
    auto = _auto(alone, served, unproven=unproven)
    chosen = everyone.get(sync, auto)
    comparison = Comparison(
        measured=measured,
        alone=alone,
        chosen=chosen,
        auto=auto,
        served=served,
        everyone=tuple(everyone.values()),
        equal=equal,
    )
    return SyncChoice(
        measured=measured,
        rows=(alone, *_shown(served, everyone, chosen)),
        chosen=chosen,
        best_node=alone.nodes[0],
        left_out=left_out(comparison),
        warnings=warnings(comparison),
    )


def _shown(served: Sequence[StepTime], everyone: Mapping[str, StepTime], chosen: StepTime) -> Iterator[StepTime]:
    """Yield each sync method with its best nodes; the first and the chosen method also with all nodes."""
    for number, best in enumerate(served):
        yield best
        together = everyone[best.sync]
        if together is not best and (number == 0 or best.sync == chosen.sync):
            yield together


def _rows(measured: Measurement, alone: StepTime, *, equal: bool) -> tuple[tuple[StepTime, ...], dict[str, StepTime]]:
    """Return each sync method with its best nodes, and by name with all nodes; nothing for a single node."""
    candidates = node_sets(measured, equal=equal)
    if not candidates:
        return (), {}
    together = candidates[0]
    everyone = {cost.sync: step_time(measured, together, cost, alone.step_s) for cost in measured.costs}
    best = {cost.sync: best_node_set(measured, candidates, cost) for cost in measured.costs}
    served = tuple(
        everyone[cost.sync] if best[cost.sync] is together else step_time(measured, best[cost.sync], cost, alone.step_s)
        for cost in measured.costs
    )
    return served, everyone


def _auto(alone: StepTime, served: Sequence[StepTime], *, unproven: bool) -> StepTime:
    """Return the most exact method that is nearly as fast as the fastest; one node if no set is faster."""
    open_to_us = [best for best in served if best.proven or unproven]
    fastest = max((best.per_s for best in open_to_us), default=0.0)
    if fastest < WORTH * alone.per_s:
        return alone
    return next(best for best in open_to_us if WORTH * best.per_s >= fastest and best.per_s > alone.per_s)
