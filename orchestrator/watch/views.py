"""View of a run: the verdict on it, and all figures that a screen shows of it, as plain data."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.output_progress import output_share, output_words
from orchestrator.render.printable import printable
from orchestrator.state.condition import Code, Condition
from orchestrator.state.phase import Phase
from orchestrator.state.progress import RunProgress, progress_of
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import Verdict, verdict
from orchestrator.watch.node_view import NodeView, node_view, slowest_ranks
from orchestrator.watch.timeline import timeline_of
from orchestrator.watch.view_types import (
    CheckpointView,
    ConditionView,
    ProgressFigures,
    RunView,
)
from orchestrator.watch.words import words


def run_view(state: RunState, now: float) -> RunView:
    """The view of a run at this time, in seconds since 1970."""
    judged = verdict(state, now)
    figures = progress_of(state, judged.phase, now)
    run, plan = state.run, state.plan
    parts = [node.part for node in state.members]
    read = [part.by_our_clock(part.read_at) for part in parts if part.read_at is not None]
    own = run if run and run.command else None
    return RunView(
        run_id=printable(state.run_id),
        phase=judged.phase,
        severity=judged.severity,
        conditions=condition_views(judged.conditions, state.run_id, now),
        reason=printable(judged.reason),
        is_on_nodes=run is not None,
        last_at=max(read, default=None),
        attempt=state.attempt,
        command=printable(own.command if own else " ".join(plan.command) if plan else ""),
        user=printable(run.user if run else plan.user if plan else ""),
        started_at=printable(run.started_at if run else plan.started_at if plan else ""),
        restarts=state.restarts,
        progress=_figures(figures, judged, state),
        nodes=_nodes(state, judged, figures, now),
        timeline=timeline_of(state),
        checkpoint=_checkpoint(state),
    )


def condition_views(conditions: Iterable[Condition], run_id: str, now: float) -> tuple[ConditionView, ...]:
    """Conditions with their words."""
    shown = [(one, words(one, run_id, now)) for one in conditions]
    return tuple(
        ConditionView(
            code=one.code.value, severity=one.severity, node=printable(one.node), rank=one.rank, since=one.since,
            text=found.text, command=found.command,
        )
        for one, found in shown
    )  # fmt: skip


def _figures(figures: RunProgress, judged: Verdict, state: RunState) -> ProgressFigures:
    age_s = figures.age_s or 0.0
    answer = not any(one.code is Code.NODE_SILENT for one in judged.conditions)
    moves = judged.phase is Phase.RUNNING and answer and not figures.is_quiet
    return ProgressFigures(
        step=figures.step,
        final_step=figures.final_step,
        share=output_share(figures.printed) if figures.printed else figures.share,
        step_age_s=figures.age_s if state.run else None,
        remaining_s=figures.remaining_s if moves else None,
        loss=figures.loss,
        losses=figures.losses,
        per_s=figures.per_s,
        unit=printable(figures.unit),
        of_forecast=figures.of_forecast,
        waiting=figures.waiting,
        exchanging=figures.exchanging,
        is_before_restart=figures.is_before_restart,
        output=output_words(figures.printed, running=moves, age_s=age_s),
        work=figures.work,
        last_line=printable(figures.last_line) if figures.is_quiet and judged.phase.is_active else "",
    )


def _nodes(state: RunState, judged: Verdict, figures: RunProgress, now: float) -> tuple[NodeView, ...]:
    members = state.members
    compute_s = slowest_ranks(figures.compute_s, [one.name for one in members])
    return tuple(
        node_view(one, now, phase=judged.phase, compute_s=compute_s.get(one.name), conditions=judged.conditions)
        for one in members
    )


def _checkpoint(state: RunState) -> CheckpointView | None:
    """The newest one that the leading node's lines or the record report."""
    leader = state.leader
    if leader and leader.part.checkpoint and leader.part.checkpoint.step is not None:
        return CheckpointView(step=leader.part.checkpoint.step, node=leader.name)
    newest = next(iter(state.journal.lineage()), None)
    return CheckpointView(step=newest.step, node=newest.node) if newest else None
