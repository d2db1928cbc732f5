"""State of a run that this process follows: one for the supervisor, the screen and the commands of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.load_state import recorded_state
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import RunEvent
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import ContainerSeen, JournalRead, fact_of
from orchestrator.state.phase import phase_of
from orchestrator.state.progress import progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord


class FollowedRun:
    """State of a followed run. The follower feeds it, before anyone else receives an event."""

    def __init__(self, record: RunRecord, clock: Callable[[], float] = seen_now) -> None:
        """`clock`: that of its facts and decisions."""
        self.record, self.state, self.now = record, RunState(run_id=record.run_id), clock
        self._plan: Plan | None = None

    def begin(self, plan: Plan, containers: Sequence[RunningContainer]) -> None:
        """Begin an attempt with this plan and its containers, which run as far as is known."""
        self._plan = plan
        self._read_record()
        for one in containers:
            if one.id:  # otherwise its node did not answer
                self.note_running(one.node.name, one.id)

    def take(self, run_event: RunEvent) -> None:
        """Take an event into account; record the forecast at once, so that it is shown during the run."""
        if self.record.is_stopping() and not self.state.journal.stop:
            self._read_record()
        if fact := fact_of(run_event, self.now()):
            before = self.state.forecast
            apply(self.state, fact)
            if (forecast := self.state.forecast) and forecast is not before:
                with suppress(OSError):  # a full disk was reported when the lines did not fit
                    self.record.save_forecast(forecast)

    def note_running(self, node: str, container: str) -> None:
        """Note that this container of the run runs, maybe again."""
        apply(self.state, _running(node, container, self.now()))

    @property
    def step(self) -> int | None:
        """The newest step, by events of the program or by its output."""
        return progress_of(self.state, phase_of(self.state), self.now()).step

    def _read_record(self) -> None:
        journal, forecast = self.record.journal, self.record.forecast()
        apply(self.state, JournalRead(seen=self.now(), journal=journal, plan=self._plan, forecast=forecast))


def observed(record: RunRecord, containers: Sequence[RunningContainer]) -> RunState:
    """The state of a run that another process follows, too, by its record."""
    now = seen_now()
    state = recorded_state(record, now)
    for one in containers:
        apply(state, _running(one.node.name, one.id, now))
    return state


def _running(node: str, container: str, seen: float) -> ContainerSeen:
    facts = ContainerFacts(id=container, name="", image="", labels={}, status="running")
    return ContainerSeen(seen=seen, node=node, facts=facts)
