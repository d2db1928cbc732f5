"""Reasons and warnings of a forecast: nodes that are left out, what is slow, and what would make it faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from contract.cost_model.node_sets import best_alone
from contract.cost_model.step_time import ALONE, StepTime, node_set, step_s
from contract.cost_model.units import mbit, megabytes, names, seconds, times

MUCH = 4
"""A link or a node this many times slower than the others is reported as slow."""
WORTH_A_WORD = 1.05
"""Speed-up that an advice must bring to be given."""
EFFICIENT = 0.9
"""Share of the sum of all nodes' speeds."""
LARGEST = 1 << 24
"""Samples per step: no advice names a larger step."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A rank that takes no part in the run, and the reason."""

    node: str
    rank: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The choice and the alternatives that it is compared with."""

    measured: Measurement
    alone: StepTime
    chosen: StepTime
    auto: StepTime
    """The choice of `--sync auto`: `chosen`, unless the user named a sync method."""
    served: tuple[StepTime, ...]
    """Each sync method with its best nodes."""
    everyone: tuple[StepTime, ...]
    """Each sync method with all nodes."""
    equal: bool
    """True if shares are equal."""

    @property
    def asked(self) -> bool:
        """True if the user named a sync method."""
        return self.chosen is not self.auto

    @property
    def best_node_set(self) -> StepTime:
        """The fastest set of several nodes, proven sync methods first, even if one node alone is faster."""
        return max(self.served, key=lambda row: (row.proven, row.per_s))


def left_out(comparison: Comparison) -> tuple[LeftOut, ...]:
    """Return the nodes outside the chosen set, each with the reason as text."""
    nodes, chosen = comparison.measured.nodes, frozenset(comparison.chosen.ranks)
    others = [node for node in nodes if node.rank in chosen]
    absent = [node for node in nodes if node.rank not in chosen]
    return tuple(LeftOut(node=node.node, rank=node.rank, why=_why(comparison, node, others)) for node in absent)


def warnings(comparison: Comparison) -> tuple[str, ...]:
    """Return warnings, the most severe first: what would happen, and what to do."""
    if not comparison.everyone:
        return ()
    return (*_slower_than_one(comparison), *_unproven(comparison), *_slow_links(comparison))


def _why(comparison: Comparison, node: NodeSpeed, others: Sequence[NodeSpeed]) -> str:
    """Return the reason why a node is left out, with the step time with and without it; `others` are chosen."""
    measured, chosen = comparison.measured, comparison.chosen
    sync = comparison.best_node_set.sync if chosen.sync == ALONE else chosen.sync
    members = sorted([*others, node], key=lambda member: member.rank)
    together = node_set(members, measured.samples_per_step, equal=comparison.equal)
    with_it = step_s(measured, together, measured.cost(sync))
    text = f"a step would take {seconds(with_it)} with it ({sync}), {seconds(chosen.step_s)} without"
    if node.link * MUCH <= (typical := median(other.link for other in others)):
        return f"its link carries {mbit(node.link)}, the others' {mbit(typical)}: {text}"
    fastest = min(others, key=lambda other: other.sample_s)
    if node.sample_s >= MUCH * fastest.sample_s:
        return f"it computes {times(node.sample_s / fastest.sample_s)} slower than {fastest.node}: {text}"
    if with_it < chosen.step_s:
        return f"it would bring little, less than the forecast can be sure of: {text}"
    return f"exchanging with it costs more time than its computing saves: {text}"


def _slower_than_one(comparison: Comparison) -> Iterator[str]:
    """Warn if all nodes are slower than the best one, with the sync method of the user or the most exact one."""
    measured, alone = comparison.measured, comparison.alone
    together = comparison.chosen if comparison.asked else comparison.everyone[0]
    if together.speedup >= 1:
        return
    k, sync, best = len(together.nodes), together.sync, alone.nodes[0]
    yield (
        f"{k} nodes with {sync} would train {times(1 / together.speedup)} slower than {best} alone: in a step they"
        f" compute for {seconds(together.compute_s)}, and sending {megabytes(together.sent_bytes)} each adds"
        f" {seconds(together.exchange_s)}; {best} alone needs {seconds(alone.step_s)}. {_taken(comparison)}"
    )
    even, efficient = larger_steps(measured, measured.cost(sync), equal=comparison.equal)
    if even:
        text = f", and from {efficient} on at {EFFICIENT * 100:.0f} % of their joint speed" if efficient else ""
        yield (
            f"more gradient accumulation helps: from --global-batch-size {even} on (now {measured.samples_per_step}),"
            f" {k} nodes with {sync} are as fast as {best} alone{text}"
        )


def _taken(comparison: Comparison) -> str:
    auto = comparison.auto
    if auto.sync == ALONE:
        doing = "lets it train alone"
    else:
        doing = f"takes {auto.sync} on {names(auto.nodes)}: {auto.speedup:.1f} x {comparison.alone.nodes[0]} alone"
    return f"--sync auto {doing}" if comparison.asked else f"So auto {doing}"


def _unproven(comparison: Comparison) -> Iterator[str]:
    """Warn that the chosen method is unproven, or that an unproven method would be faster."""
    unknown = "whether its loss stays within 0.5 % of fp32's is not known"
    chosen = comparison.chosen
    if not chosen.proven:
        yield f"{chosen.sync}: {unknown}. Compare the loss with a run of --sync fp32, or take --sync auto"
        return
    fastest = max(comparison.everyone, key=lambda row: row.per_s)
    if not fastest.proven and fastest.speedup >= WORTH_A_WORD * max(1.0, chosen.speedup) and not comparison.asked:
        yield f"--sync {fastest.sync} would reach {fastest.speedup:.1f} x {comparison.alone.nodes[0]} alone; {unknown}"


def _slow_links(comparison: Comparison) -> Iterator[str]:
    """Warn of a node with a far slower link, with the step time that a link like the others' would give."""
    measured = comparison.measured
    sync = comparison.best_node_set.sync if comparison.chosen.sync == ALONE else comparison.chosen.sync
    cost = measured.cost(sync)
    everyone = next(row for row in comparison.everyone if row.sync == sync)
    for node in measured.nodes:
        typical = median(other.link for other in measured.nodes if other is not node)
        if node.link * MUCH > typical:
            continue
        cabled = [replace(each, upload=typical, download=typical) if each is node else each for each in measured.nodes]
        repaired = step_s(measured, node_set(cabled, measured.samples_per_step, equal=comparison.equal), cost)
        if everyone.step_s >= WORTH_A_WORD * repaired:
            yield (
                f"{node.node}'s link carries {mbit(node.link)}, the others' {mbit(typical)}: a cable instead of Wi-Fi,"
                f" or a faster port, would bring a step of all nodes with {sync} from {seconds(everyone.step_s)} to"
                f" {seconds(repaired)}"
            )


def larger_steps(measured: Measurement, cost: SyncCost, *, equal: bool = False) -> tuple[int | None, int | None]:
    """Samples per step from which all nodes are as fast as the best single node, and from which they reach EFFICIENT of
    the sum of their speeds; None where no size does, and for the second where it is no more than the first."""

    def together_s(samples: int) -> float:
        return step_s(measured, node_set(measured.nodes, samples, equal=equal), cost)

    def alone_s(samples: int) -> float:
        return best_alone(replace(measured, samples_per_step=samples)).compute_s

    joint = sum(1 / node.sample_s for node in measured.nodes)
    even = _first(len(measured.nodes), lambda samples: together_s(samples) <= alone_s(samples))
    efficient = _first(len(measured.nodes), lambda samples: together_s(samples) * joint * EFFICIENT <= samples)
    return even, efficient if even and efficient and efficient > even else None


def _first(fewest: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest size for which `holds`, rounded up to two digits; `holds` stays true for larger sizes."""
    upper = fewest
    while not holds(upper):
        upper *= 2
        if upper > LARGEST:
            return None
    lower = max(fewest, upper // 2)
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (lower, middle) if holds(middle) else (middle, upper)
    unit: int = 10 ** max(0, len(str(upper)) - 2)
    return -(-upper // unit) * unit
