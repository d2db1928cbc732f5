"""Progress of a run: by the events of its program, otherwise by what agents read from its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from contract.event_values import RankPosition
from contract.events import OutputProgress, ProgressEvent
from contract.log_lines import without_rank
from contract.rank_words import work_line
from orchestrator.checks.output_progress import SILENT_S, UNITS, output_share, output_words, remaining_s
from orchestrator.state.limits import NO_PROGRESS_S
from orchestrator.state.phase import Phase
from orchestrator.state.run_state import AttemptPart, RunState


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Progress at one moment. None: not known, or not reported."""

    origin: Literal["event", "output", ""] = ""
    """The program's own events, or what agents have read from its output; empty: neither reports any."""
    step: int | None = None
    final_step: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Those of the newest reports, the newest last."""
    per_s: float | None = None
    unit: str = ""
    of_forecast: float | None = None
    """Speed divided by the predicted speed."""
    remaining_s: float | None = None
    """Remaining time at this moment; None, too, while the run makes no progress."""
    compute_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Seconds for a rank's part of a step, by node or `NODE.LOCAL_RANK`."""
    waiting: float | None = None
    exchanging: float | None = None
    """Shares of the time, from 0 to 1, in which the reporting rank waits for data, and for the other nodes."""
    at: float | None = None
    """Time when it was reported, in seconds since 1970."""
    age_s: float | None = None
    is_before_restart: bool = False
    """True if no report has come since the newest restart."""
    printed: OutputProgress | None = None
    """The report that was read from the output."""
    optimizer_steps: int | None = None
    """Number of optimizer steps, where the program reports no steps itself."""
    steps_per_s: float | None = None
    """Optimizer steps per second in the last minute."""
    is_over: bool = False
    """True if the run has ended."""
    last_line: str = ""
    """The newest log line of a rank, `rank 0: …`, not yet safe to show."""

    @property
    def work(self) -> str:
        """`1,204 optimizer steps · 3.1/s`; empty: the program reports its steps itself, or makes none."""
        return (
            ""
            if self.optimizer_steps is None
            else work_line(self.optimizer_steps, self.steps_per_s, is_over=self.is_over)
        )

    @property
    def is_quiet(self) -> bool:
        """True if the newest log line says more: nothing is reported, or nothing new, or nothing since the restart."""
        return not self.origin or self.is_before_restart or (self.age_s or 0.0) > NO_PROGRESS_S

    @property
    def share(self) -> float | None:
        """Part of the training that is done, from 0 to 1."""
        if self.printed:
            return output_share(self.printed)
        return min(1.0, self.step / self.final_step) if self.step is not None and self.final_step else None


def words_of_script(progress: RunProgress, *, running: bool) -> str:
    """Progress of a program that reports no steps itself: what its output says, and its optimizer steps."""
    output = output_words(progress.printed, running=running, age_s=progress.age_s or 0.0)
    return " · ".join(filter(None, (output, progress.work)))


def progress_of(state: RunState, phase: Phase, now: float) -> RunProgress:
    """The progress of a run at this time."""
    leader = state.leader
    last_line = _last_line(state)
    if leader and leader.part.progress:
        return _reported(leader.part, leader.part.progress, phase, now, last_line)
    parts = [node.part for node in state.members]
    newest = _printed(parts)
    progress = _read(newest, phase, now, last_line) if newest else RunProgress(last_line=last_line)
    work = None
    if phase.is_active or newest is None:
        work = lowest_at_work(rank.position for node in state.members for rank in node.part.ranks.values())
    per_s = work.steps_per_s if work and phase is Phase.RUNNING else None
    steps = work.step if work else None
    return replace(progress, optimizer_steps=steps, steps_per_s=per_s, is_over=not phase.is_active)


def lowest_at_work(positions: Iterable[RankPosition | None]) -> RankPosition | None:
    """The position of the lowest rank whose optimizer steps are counted; None: there is none."""
    counted = (one for one in positions if one and one.steps_per_s is not None)
    return min(counted, key=lambda one: one.rank or 0, default=None)


def _reported(part: AttemptPart, event: ProgressEvent, phase: Phase, now: float, last_line: str) -> RunProgress:
    at = part.by_our_clock(part.progress_at)
    age_s = max(0.0, now - at)
    is_before_restart = part.is_restarting or part.progress_generation != len(part.starts)
    moves = phase is Phase.RUNNING and not is_before_restart and age_s < NO_PROGRESS_S
    left = event.remaining_s
    known = {label: seconds for label, seconds in (event.compute_s or {}).items() if seconds is not None}
    return RunProgress(
        origin="event",
        step=event.step,
        final_step=event.final_step,
        loss=event.loss if event.loss is not None else (part.losses[-1] if part.losses else None),
        losses=tuple(part.losses),
        per_s=event.per_s,
        unit=event.unit or "samples",
        of_forecast=event.of_forecast,
        remaining_s=max(0.0, left - age_s) if moves and left is not None and left >= 0 else None,
        compute_s=MappingProxyType({} if is_before_restart else known),
        waiting=part.shares.get("waiting"),
        exchanging=part.shares.get("exchanging"),
        at=at,
        age_s=age_s,
        is_before_restart=is_before_restart,
        last_line=last_line,
    )


def _read(part: AttemptPart, phase: Phase, now: float, last_line: str) -> RunProgress:
    event, at = part.printed or OutputProgress(), part.by_our_clock(part.printed_at)
    age_s, known = max(0.0, now - at), event.unit in UNITS
    is_before_restart = part.is_restarting or part.printed_at < (part.started_at or part.printed_at)
    moves = phase is Phase.RUNNING and not is_before_restart
    return RunProgress(
        origin="output",
        step=event.step,
        final_step=event.steps,
        epoch=event.epoch,
        epochs=event.epochs,
        loss=event.loss,
        losses=tuple(part.losses),
        per_s=event.per_s if known else None,
        unit=(event.unit or "") if known else "",
        remaining_s=remaining_s(event, age_s) if moves else None,
        at=at,
        age_s=age_s,
        is_before_restart=is_before_restart,
        printed=event,
        last_line=last_line,
    )


def _printed(parts: list[AttemptPart]) -> AttemptPart | None:
    """The part with the newest report of the lowest rank that prints its progress; one that is silent does not count
    while another one prints."""
    printing = [part for part in parts if part.printed]
    newest = max((part.by_our_clock(part.printed_at) for part in printing), default=0.0)
    fresh = [part for part in printing if newest - part.by_our_clock(part.printed_at) <= SILENT_S]
    return min(fresh, key=_rank_of, default=None)


def _rank_of(part: AttemptPart) -> float:
    rank = part.printed.rank if part.printed else None
    return float("inf") if rank is None else rank


def _last_line(state: RunState) -> str:
    newest, text = 0.0, ""
    for node in state.members:
        for number, rank in node.part.ranks.items():
            if rank.last_line and (rank.line_at or 0.0) > newest:
                newest, text = rank.line_at or 0.0, f"rank {number}: {without_rank(rank.last_line).strip()}"
    return text
