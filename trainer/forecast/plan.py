"""What a training would take with 1, 2, … nodes under each rung, who helps and who hurts, and what a larger step gives.

Beyond `forecast`, which chooses for a run that has its nodes: here the nodes themselves are the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.errors import UsageError
from trainer.forecast.choice import AUTO, WORTH, forecast
from trainer.forecast.measured import Cost, Measured, NodeSpeed
from trainer.forecast.rows import Row, row, step_s, team
from trainer.forecast.split import micro_batches
from trainer.forecast.teams import NEARLY, best_alone, best_team, teams

MULTIPLES = (1, 2, 4, 8, 16, 32, 64)
"""Of the samples of a step that was asked for."""
ENOUGH = 0.9
"""Of the speed that the largest of these steps reaches: more accumulation would bring little."""


@dataclass(frozen=True, kw_only=True)
class Question:
    sync: str = AUTO
    """A rung, or AUTO: those whose loss is known."""
    equal: bool = False
    """Whether shares are equal, whatever the speeds."""
    among: tuple[str, ...] = ()
    """Nodes to choose from; none: all that were measured."""
    samples_per_step: int | None = None
    """None: as it was measured."""
    samples: int | None = None
    """Of the whole training; None: not asked."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node, with and without it."""

    node: str
    taken: bool
    effect: str
    """`helps`, `hurts` or `makes no difference` to those who are taken."""
    with_s: float
    """Seconds of a step with it, by the rung that then serves best."""
    without_s: float
    """The same without it; 0 where nobody would be left."""
    alone_s: float
    """Seconds of the whole step by this node alone."""
    share: int
    """Samples of it in a step, so that all finish together; 0 where it is not taken."""
    micro_batch: int
    """Samples in one forward pass, as even as can be and no more than was measured."""
    passes: int
    """Forward passes of a step."""


@dataclass(frozen=True, kw_only=True)
class Larger:
    """A step of more samples: the exchange stays the same."""

    multiple: int
    samples_per_step: int
    row: Row
    """With the nodes and the rung that then serve best."""
    efficiency: float
    """Of the sum of all nodes' speeds."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    unit: str
    units_per_sample: float
    samples_per_step: int
    samples: int | None
    alone: Row
    """The best single node."""
    chosen: Row
    by_size: tuple[Row, ...]
    """For 1, 2, … nodes the rung, of those open to the choice, that serves best, with its best set of so many."""
    rows: tuple[Row, ...]
    """Every rung with every number of nodes from 2 on."""
    members: tuple[Member, ...]
    larger: tuple[Larger, ...]
    enough: int
    """Samples of the smallest of these steps that comes to ENOUGH of the fastest."""
    warnings: tuple[str, ...]


def plan(measured: Measured, question: Question) -> Plan:
    """UsageError: an unknown rung or node, or fewer samples in a step than nodes."""
    measured = _asked_for(measured, question)
    found = forecast(measured, equal=question.equal)
    alone = found.rows[0]
    rows = _rows(measured, alone, equal=question.equal)
    chosen = found.chosen if question.sync == AUTO else _chosen(measured, question, alone)
    larger = tuple(_larger(measured, question, multiple) for multiple in MULTIPLES)
    fastest = max(each.row.per_s for each in larger)
    return Plan(
        unit=measured.unit,
        units_per_sample=measured.units_per_sample,
        samples_per_step=measured.samples_per_step,
        samples=question.samples,
        alone=alone,
        chosen=chosen,
        by_size=_by_size(rows, alone, question.sync),
        rows=rows,
        members=tuple(_member(measured, question, node, chosen) for node in measured.nodes),
        larger=larger,
        enough=next(each.samples_per_step for each in larger if each.row.per_s >= ENOUGH * fastest),
        warnings=found.warnings,
    )


def _asked_for(measured: Measured, question: Question) -> Measured:
    nodes = measured.nodes
    if question.among:
        names = [_machine(node, question.among) for node in nodes]
        if unknown := set(question.among) - set(names):
            raise UsageError(f"not measured: {', '.join(sorted(unknown))}")
        nodes = tuple(node for node, name in zip(nodes, names, strict=True) if name in question.among)
    samples = question.samples_per_step or measured.samples_per_step
    if question.sync != AUTO:
        measured.cost(question.sync)
    return replace(measured, nodes=nodes, samples_per_step=samples, links=())


def _machine(node: NodeSpeed, names: Sequence[str]) -> str:
    """`alpha` of `alpha` and, where it holds several ranks, of `alpha.1`; a node may be called `alpha.1` too."""
    return node.node if node.node in names else node.node.rpartition(".")[0]


def _open(measured: Measured, sync: str) -> list[Cost]:
    """The rungs to choose from."""
    return [cost for cost in measured.costs if (cost.proven if sync == AUTO else cost.sync == sync)]


def _rows(measured: Measured, alone: Row, *, equal: bool) -> tuple[Row, ...]:
    candidates = teams(measured, equal=equal)
    sizes = range(2, len(measured.nodes) + 1)
    found = []
    for size in sizes:
        of_size = [candidate for candidate in candidates if len(candidate.members) == size]
        found += [
            row(measured, best_team(measured, of_size, cost), cost, alone.step_s) for cost in measured.costs if of_size
        ]
    return tuple(found)


def _by_size(rows: Sequence[Row], alone: Row, sync: str) -> tuple[Row, ...]:
    open_to_us = [each for each in rows if (each.proven if sync == AUTO else each.sync == sync)]
    sizes = sorted({len(each.nodes) for each in open_to_us})
    return alone, *(
        max((each for each in open_to_us if len(each.nodes) == size), key=lambda each: each.per_s) for size in sizes
    )


def _chosen(measured: Measured, question: Question, alone: Row) -> Row:
    """The set that serves the rung asked for best; the best single node where no team is worth it."""
    candidates = teams(measured, equal=question.equal)
    if not candidates:
        return alone
    cost = measured.cost(question.sync)
    best = row(measured, best_team(measured, candidates, cost), cost, alone.step_s)
    return best if best.per_s >= WORTH * alone.per_s else alone


def _best_s(measured: Measured, question: Question, members: Sequence[NodeSpeed]) -> float:
    """Seconds of a step of exactly these nodes, by the rung that serves them best."""
    if not members:
        return 0.0
    if len(members) == 1:
        return team(members, measured.samples_per_step).compute_s
    together = team(members, measured.samples_per_step, equal=question.equal)
    return min(step_s(measured, together, cost) for cost in _open(measured, question.sync) or measured.costs)


def _member(measured: Measured, question: Question, node: NodeSpeed, chosen: Row) -> Member:
    """Its effect on those who are taken; where these are one, on the best single node that there would be."""
    taken = [each for each in measured.nodes if each.rank in chosen.ranks]
    others = [each for each in taken if each is not node]
    with_it = sorted([*others, node], key=lambda each: each.rank)
    without_s = _best_s(measured, question, others)
    if not others and len(measured.nodes) > 1:
        rest = tuple(each for each in measured.nodes if each is not node)
        without_s = best_alone(replace(measured, nodes=rest)).compute_s
    with_s = _best_s(measured, question, with_it)
    share = chosen.shares[chosen.ranks.index(node.rank)] if node.rank in chosen.ranks else 0
    micro_batch, passes = micro_batches(share, node.micro_batch)
    return Member(
        node=node.node,
        taken=node in taken,
        effect=_effect(with_s, without_s),
        with_s=with_s,
        without_s=without_s,
        alone_s=team([node], measured.samples_per_step).compute_s,
        share=share,
        micro_batch=micro_batch,
        passes=passes,
    )


def _effect(with_s: float, without_s: float) -> str:
    if not without_s or with_s < NEARLY * without_s:
        return "helps"
    return "hurts" if NEARLY * with_s > without_s else "makes no difference"


def _larger(measured: Measured, question: Question, multiple: int) -> Larger:
    grown = replace(measured, samples_per_step=multiple * measured.samples_per_step)
    single = best_alone(grown)
    best = row(grown, single, None, single.compute_s)
    for candidate in teams(grown, equal=question.equal):
        for cost in _open(grown, question.sync):
            found = row(grown, candidate, cost, single.compute_s)
            best = found if found.per_s > best.per_s else best
    joint = sum(1 / node.sample_s for node in grown.nodes) * grown.units_per_sample
    return Larger(
        multiple=multiple, samples_per_step=grown.samples_per_step, row=best, efficiency=min(1.0, best.per_s / joint)
    )
