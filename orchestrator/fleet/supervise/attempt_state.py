"""Facts that the lines of an attempt report, and how it ended."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from contract.cost_model.forecast import Forecast
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
from orchestrator.checks.cluster_job import ClusterJob
from orchestrator.checks.failure import EndedBadly, Failure, generation_failure, root_cause
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.plan.recovery import STOPPED_CODE, AddNodes, GiveUp, NoNodeAnswers, Replan
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State
from orchestrator.specs.run_events import ContainerExited, NodeLost, RunLine

KEPT_LINES = 200
"""Enough for a rank's traceback and, after it, torchrun's summary of eight ranks."""
CLEAN_OUTCOMES = ("done", "stopped")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run, or an attempt of it, ended."""

    state: State
    failure: Failure | None = None
    stopped: bool = False
    """Whether it ended by a requested stop."""
    last_event: ProgressEvent | None = None
    forecast: Forecast | None = None
    """The predicted speed."""
    of_forecast: float | None = None
    """Last speed divided by the predicted speed."""
    then: Replan | AddNodes | None = None
    """How the run continues; None where it ended."""
    samples_per_step: int | None = None
    checkpoint: bool = False
    """Whether a checkpoint of the trainer is there to resume from."""
    note: str = ""
    """Sentence of the coordinator about a run that ended well."""

    @property
    def word(self) -> str:
        """The outcome, as the record stores it."""
        return "stopped" if self.stopped else self.state.value


@dataclass
class AttemptReport:
    """Facts known of an attempt so far."""

    plan: Plan
    record: RunRecord
    tails: dict[str, deque[tuple[int | None, str]]] = field(default_factory=dict)
    reported: dict[str, RankFailed] = field(default_factory=dict)
    """The first failure of each node in its generation."""
    failed: list[EndedBadly] = field(default_factory=list)
    verdict: Finished | None = None
    """The agents' verdict."""
    lost: dict[str, str] = field(default_factory=dict)
    """Nodes that do not answer, and why."""
    stopped: bool = False
    last_event: ProgressEvent | None = None
    forecast: Forecast | None = None
    of_forecast: float | None = None
    samples_per_step: int | None = None
    checkpoint: bool = False

    def add_line(self, line: RunLine) -> None:
        event = line.event
        self.checkpoint |= isinstance(event, CheckpointWritten | TrainingResumed)
        self.stopped |= isinstance(event, TrainingStopped)
        if isinstance(event, ProgressEvent):
            self.last_event = event
            self.of_forecast = self.of_forecast if event.of_forecast is None else event.of_forecast
        match event:
            case None:
                self.tails.setdefault(line.node, deque(maxlen=KEPT_LINES)).append((line.rank, line.text))
            case RankFailed():
                self.reported.setdefault(line.node, event)
            case GenerationStarted():  # a failure of an earlier generation was not the end
                self.reported.pop(line.node, None)
                self.stopped = False
            case Finished() if self.verdict is None or self.verdict.outcome in CLEAN_OUTCOMES:
                self.verdict = event
            case GroupJoined():
                self.samples_per_step = event.samples_per_step
            case ForecastMade(forecast=forecast) if event.rank == 0 and line.node == self.plan.master:
                self.forecast = forecast
                with suppress(OSError):  # a full disk was reported when the lines did not fit
                    self.record.save_forecast(forecast)  # at once: `orch status` shows it during the run

    def add_end(self, run_event: ContainerExited | NodeLost) -> None:
        """Note that a container has ended or is not waited for any more."""
        self.failed = [ended for ended in self.failed if ended.node != run_event.node]  # of an earlier start
        container = run_event.container if isinstance(run_event, ContainerExited) else None
        if container is not None and container.state is State.SUCCEEDED:
            return
        part = next(part for part in self.plan.nodes if part.node == run_event.node)
        lost = run_event.error.message if isinstance(run_event, NodeLost) else ""
        report = self.reported.get(run_event.node, RankFailed())
        self.failed.append(
            EndedBadly(
                node=run_event.node,
                node_rank=part.node_rank,
                first_rank=part.first_rank,
                exit_code=container.exit_code if container else None,
                oom_killed=container.oom_killed if container else False,
                lines=tuple(self.tails.get(run_event.node, ())),
                reported=lost or (report.reason if run_event.node in self.reported else ""),
                cause=report.cause or "",
                frame=report.frame or "",
            )
        )

    def outcome(self, last: object, *, stop_requested: bool = False) -> RunOutcome:
        """`last` is the decision that ended the following; `stop_requested`: `orch stop` was called."""
        agreed = self.verdict.outcome if self.verdict else None
        asked_to_stop = bool(self.failed) and {ended.exit_code for ended in self.failed} == {STOPPED_CODE}
        stopped = self.stopped or stop_requested or asked_to_stop or agreed == "stopped"
        failure = self._failure(last, stopped=stopped)
        return RunOutcome(
            state=State.LOST if isinstance(last, NoNodeAnswers) else State.FAILED if failure else State.SUCCEEDED,
            failure=failure,
            stopped=stopped and not failure,
            last_event=self.last_event,
            forecast=self.forecast,
            of_forecast=self.of_forecast,
            then=last if isinstance(last, Replan | AddNodes) else None,
            samples_per_step=self.samples_per_step,
            checkpoint=self.checkpoint,
            note=(self.verdict.note or "") if self.verdict and not failure else "",
        )

    def _failure(self, last: object, *, stopped: bool) -> Failure | None:
        if isinstance(last, GiveUp):
            name, others = last.nodes[0], last.nodes[1:]
            reason = self.lost.get(name, "the others wait for it")
            if last.seconds >= 1:
                reason += f", for {last.seconds:.0f} s" + (f" (as are {', '.join(others)})" if others else "")
            return root_cause([self._unseen(name, None, reason)], run=self.plan.run_id, job=ClusterJob.of(self.plan))
        if isinstance(last, Replan | AddNodes):
            return None
        kind = self.verdict.outcome if self.verdict else None
        if kind == "done" or (kind is None and stopped) or kind == "stopped":
            return None  # torchrun exits 1 after a clean stop, too: the events of ranks and agents count
        failed, verdict = self.failed, generation_failure(self.verdict)
        if verdict and not any(ended.node == verdict.node for ended in failed):
            failed = [*failed, self._unseen(verdict.node, verdict.exit_code)]
        return root_cause(failed, agreed=verdict, run=self.plan.run_id, job=ClusterJob.of(self.plan))

    def _unseen(self, node: str, exit_code: int | None, reason: str = "") -> EndedBadly:
        """A node of which the end was not seen from here."""
        ranks = next(((part.node_rank, part.first_rank) for part in self.plan.nodes if part.node == node), (0, 0))
        return EndedBadly(
            node=node, node_rank=ranks[0], first_rank=ranks[1], exit_code=exit_code, oom_killed=False, lines=(),
            reported=reason,
        )  # fmt: skip
