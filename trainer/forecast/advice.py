"""What people are told of a forecast: who is left out and why, what would be slow, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from trainer.forecast.larger_step import EFFICIENT, larger_steps
from trainer.forecast.measured import Measured, NodeSpeed
from trainer.forecast.rows import ALONE, Row, step_s, team
from trainer.forecast.words import mbit, megabytes, names, seconds, times

MUCH = 4
"""A link, or a node, is called slow where it is this many times slower than the others."""
WORTH_A_WORD = 1.05


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    node: str
    rank: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What advice is drawn from."""

    measured: Measured
    alone: Row
    chosen: Row
    auto: Row
    """What `--sync auto` takes: `chosen`, unless the user asked for a rung."""
    served: tuple[Row, ...]
    """Each rung with the nodes that serve it best."""
    everyone: tuple[Row, ...]
    """Each rung with all nodes."""
    equal: bool
    """Whether shares are equal."""

    @property
    def asked(self) -> bool:
        """Whether the user asked for a rung."""
        return self.chosen is not self.auto

    @property
    def best_team(self) -> Row:
        """The fastest team of a rung whose loss is known, whether it is worth it or not."""
        return max(self.served, key=lambda row: (row.proven, row.per_s))


def left_out(outlook: Outlook) -> tuple[LeftOut, ...]:
    """The nodes that the chosen row does without, and in words why."""
    absent = [node for node in outlook.measured.nodes if node.rank not in outlook.chosen.ranks]
    return tuple(LeftOut(node=node.node, rank=node.rank, why=_why(outlook, node)) for node in absent)


def warnings(outlook: Outlook) -> tuple[str, ...]:
    """Plain words, the gravest first: what would happen, and what to do. Empty where all is well."""
    if not outlook.everyone:
        return ()
    return (*_slower_than_one(outlook), *_rungs(outlook), *_slow_links(outlook))


def _why(outlook: Outlook, node: NodeSpeed) -> str:
    """What a step would take with this node too, and the cause."""
    measured, chosen = outlook.measured, outlook.chosen
    sync = outlook.best_team.sync if chosen.sync == ALONE else chosen.sync
    others = [other for other in measured.nodes if other.rank in chosen.ranks]
    members = sorted([*others, node], key=lambda member: member.rank)
    together = team(members, measured.samples_per_step, equal=outlook.equal)
    with_it = step_s(measured, together, measured.cost(sync))
    told = f"a step would take {seconds(with_it)} with it ({sync}), {seconds(chosen.step_s)} without"
    if node.link * MUCH <= (typical := median(other.link for other in others)):
        return f"its link carries {mbit(node.link)}, the others' {mbit(typical)}: {told}"
    fastest = min(others, key=lambda other: other.sample_s)
    if node.sample_s >= MUCH * fastest.sample_s:
        return f"it computes {times(node.sample_s / fastest.sample_s)} slower than {fastest.node}: {told}"
    if with_it < chosen.step_s:
        return f"it would bring little, less than the forecast can be sure of: {told}"
    return f"exchanging with it costs more time than its computing saves: {told}"


def _slower_than_one(outlook: Outlook) -> Iterator[str]:
    """All nodes with the rung asked for (else the gentlest) against the best single one; what would help."""
    measured, alone = outlook.measured, outlook.alone
    together = outlook.chosen if outlook.asked else outlook.everyone[0]
    if together.speedup >= 1:
        return
    k, sync, best = len(together.nodes), together.sync, alone.nodes[0]
    yield (
        f"{k} nodes with {sync} would train {times(1 / together.speedup)} slower than {best} alone: in a step they"
        f" compute for {seconds(together.compute_s)}, and sending {megabytes(together.sent_bytes)} each adds"
        f" {seconds(together.exchange_s)}; {best} alone needs {seconds(alone.step_s)}. {_taken(outlook)}"
    )
    even, efficient = larger_steps(measured, measured.cost(sync), equal=outlook.equal)
    if even:
        told = f", and from {efficient} on at {EFFICIENT * 100:.0f} % of their joint speed" if efficient else ""
        yield (
            f"what helps: more accumulation. From --global-batch-size {even} on (now {measured.samples_per_step}),"
            f" {k} nodes with {sync} are as fast as {best} alone{told}"
        )


def _taken(outlook: Outlook) -> str:
    auto = outlook.auto
    if auto.sync == ALONE:
        doing = "lets it train alone"
    else:
        doing = f"takes {auto.sync} on {names(auto.nodes)}: {auto.speedup:.1f} x {outlook.alone.nodes[0]} alone"
    return f"--sync auto {doing}" if outlook.asked else f"So auto {doing}"


def _rungs(outlook: Outlook) -> Iterator[str]:
    """That the loss of the chosen rung is not known; or that a rung which auto may not take would be faster."""
    unknown = "whether its loss stays within 0.5 % of fp32's is not known"
    chosen = outlook.chosen
    if not chosen.proven:
        yield f"{chosen.sync}: {unknown}. Compare the loss with a run of --sync fp32, or take --sync auto"
        return
    fastest = max(outlook.everyone, key=lambda row: row.per_s)
    if not fastest.proven and fastest.speedup >= WORTH_A_WORD * max(1.0, chosen.speedup) and not outlook.asked:
        yield f"--sync {fastest.sync} would reach {fastest.speedup:.1f} x {outlook.alone.nodes[0]} alone; {unknown}"


def _slow_links(outlook: Outlook) -> Iterator[str]:
    """A node whose link is far slower than the others', and what a step would take with one like theirs."""
    measured = outlook.measured
    sync = outlook.best_team.sync if outlook.chosen.sync == ALONE else outlook.chosen.sync
    cost = measured.cost(sync)
    everyone = next(row for row in outlook.everyone if row.sync == sync)
    for node in measured.nodes:
        typical = median(other.link for other in measured.nodes if other is not node)
        if node.link * MUCH > typical:
            continue
        cabled = [replace(each, upload=typical, download=typical) if each is node else each for each in measured.nodes]
        mended = step_s(measured, team(cabled, measured.samples_per_step, equal=outlook.equal), cost)
        if everyone.step_s >= WORTH_A_WORD * mended:
            yield (
                f"{node.node}'s link carries {mbit(node.link)}, the others' {mbit(typical)}: a cable instead of Wi-Fi,"
                f" or a faster port, would bring a step of all nodes with {sync} from {seconds(everyone.step_s)} to"
                f" {seconds(mended)}"
            )
