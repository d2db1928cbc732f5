"""What a follower has heard of one attempt, and how that ended."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from contract.cost_model.forecast import Forecast, read_forecast
from contract.events import (
    CheckpointWritten,
    Finished,
    ForecastMade,
    GenerationStarted,
    GroupJoined,
    ProgressEvent,
    RankFailed,
    TrainingResumed,
    TrainingStopped,
)
from orchestrator.checks.failure import EndedBadly, Failure, root_cause
from orchestrator.checks.verdict import Verdict, verdict_of
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.plan.recovery import TOLD_TO_STOP, GiveUp, OutOfSight, PlanAnew, TakeIn
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State
from orchestrator.specs.run_events import ContainerExited, NodeLost, RunLine

KEPT_LINES = 200
"""Enough for a rank's traceback and, after it, torchrun's summary of eight ranks."""
PEACEFUL = ("done", "stopped")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run, or an attempt of it, ended."""

    state: State
    failure: Failure | None = None
    stopped: bool = False
    """Whether it was asked to stop and did."""
    last_event: ProgressEvent | None = None
    forecast: Forecast | None = None
    """What it was expected to do."""
    of_forecast: float | None = None
    """The share of this speed that it had at last."""
    then: PlanAnew | TakeIn | None = None
    """What the run is to go on with; None where it ended."""
    samples_per_step: int | None = None
    checkpoint: bool = False
    """Whether a checkpoint of the trainer is there to resume from."""

    @property
    def word(self) -> str:
        """As the record keeps it."""
        return "stopped" if self.stopped else self.state.value


@dataclass
class Heard:
    """What is known so far."""

    plan: Plan
    record: RunRecord
    tails: dict[str, deque[tuple[int | None, str]]] = field(default_factory=dict)
    reported: dict[str, RankFailed] = field(default_factory=dict)
    """The first failure of each node in its generation."""
    failed: list[EndedBadly] = field(default_factory=list)
    verdict: Finished | None = None
    """What the supervisors agreed on, where they are."""
    lost: dict[str, str] = field(default_factory=dict)
    """Nodes out of reach now, and why."""
    stopped: bool = False
    last_event: ProgressEvent | None = None
    forecast: Forecast | None = None
    of_forecast: float | None = None
    samples_per_step: int | None = None
    checkpoint: bool = False

    def say(self, said: RunLine) -> None:
        event = said.event
        self.checkpoint |= isinstance(event, CheckpointWritten | TrainingResumed)
        self.stopped |= isinstance(event, TrainingStopped)
        if isinstance(event, ProgressEvent):
            self.last_event = event
            self.of_forecast = self.of_forecast if event.of_forecast is None else event.of_forecast
        match event:
            case None:
                self.tails.setdefault(said.node, deque(maxlen=KEPT_LINES)).append((said.rank, said.text))
            case RankFailed():
                self.reported.setdefault(said.node, event)
            case GenerationStarted():  # a failure of an earlier generation was not the end
                self.reported.pop(said.node, None)
                self.stopped = False
            case Finished() if self.verdict is None or self.verdict.outcome in PEACEFUL:
                self.verdict = event
            case GroupJoined():
                self.samples_per_step = event.samples_per_step
            case ForecastMade() if event.rank == 0 and (forecast := read_forecast(event.others)):
                self.forecast = forecast
                with suppress(OSError):  # a full disk was reported when the lines did not fit
                    self.record.save_forecast(forecast)  # at once: `orch status` shows it during the run

    def end(self, happening: ContainerExited | NodeLost) -> None:
        """A container has ended, or is not waited for any more."""
        self.failed = [ended for ended in self.failed if ended.node != happening.node]  # of an earlier life
        container = happening.container if isinstance(happening, ContainerExited) else None
        if container is not None and container.state is State.SUCCEEDED:
            return
        part = next(part for part in self.plan.nodes if part.node == happening.node)
        lost = happening.error.message if isinstance(happening, NodeLost) else ""
        report = self.reported.get(happening.node, RankFailed())
        self.failed.append(
            EndedBadly(
                node=happening.node,
                node_rank=part.node_rank,
                first_rank=part.first_rank,
                exit_code=container.exit_code if container else None,
                oom_killed=container.oom_killed if container else False,
                lines=tuple(self.tails.get(happening.node, ())),
                reported=lost or (report.reason if happening.node in self.reported else ""),
                cause=report.cause or "",
                frame=report.frame or "",
            )
        )

    def outcome(self, last: object, *, asked: bool = False) -> RunOutcome:
        """`last` is the decision that ended the following; `asked`: somebody stopped the run."""
        agreed = self.verdict.outcome if self.verdict else None
        put_down = bool(self.failed) and {ended.exit_code for ended in self.failed} == {TOLD_TO_STOP}
        stopped = self.stopped or asked or put_down or agreed == "stopped"
        failure = self._failure(last, stopped=stopped)
        return RunOutcome(
            state=State.LOST if isinstance(last, OutOfSight) else State.FAILED if failure else State.SUCCEEDED,
            failure=failure,
            stopped=stopped and not failure,
            last_event=self.last_event,
            forecast=self.forecast,
            of_forecast=self.of_forecast,
            then=last if isinstance(last, PlanAnew | TakeIn) else None,
            samples_per_step=self.samples_per_step,
            checkpoint=self.checkpoint,
        )

    def _failure(self, last: object, *, stopped: bool) -> Failure | None:
        if isinstance(last, GiveUp):
            return self._absence(last)
        if isinstance(last, PlanAnew | TakeIn):
            return None
        kind = self.verdict.outcome if self.verdict else None
        if kind == "done" or (kind is None and stopped) or kind == "stopped":
            return None  # torchrun exits 1 after a clean stop too: the word of ranks and supervisors counts
        verdict = verdict_of(self.verdict)
        return self._told(verdict) if verdict else root_cause(self.failed, run=self.plan.run_id)

    def _told(self, verdict: Verdict) -> Failure | None:
        """As the supervisors have it; the lines of its rank are ours."""
        heard_of = any(ended.node == verdict.node for ended in self.failed)
        return root_cause(
            self.failed if heard_of else [*self.failed, self._unheard(verdict.node, verdict.exit_code)],
            verdict=verdict,
            run=self.plan.run_id,
        )

    def _unheard(self, node: str, exit_code: int | None, reason: str = "") -> EndedBadly:
        """A node whose end was not seen from here."""
        seat = next(((part.node_rank, part.first_rank) for part in self.plan.nodes if part.node == node), (0, 0))
        return EndedBadly(
            node=node, node_rank=seat[0], first_rank=seat[1], exit_code=exit_code, oom_killed=False, lines=(),
            reported=reason,
        )  # fmt: skip

    def _absence(self, given_up: GiveUp) -> Failure | None:
        name = given_up.nodes[0]
        others = f" (as are {', '.join(given_up.nodes[1:])})" if len(given_up.nodes) > 1 else ""
        why = self.lost.get(name, "the others wait for it")
        reason = f"{why}, for {given_up.seconds:.0f} s{others}" if given_up.seconds >= 1 else why
        return root_cause([self._unheard(name, None, reason)], run=self.plan.run_id)
