"""Load the state of a run: its record on this computer, its containers on the nodes, and the newest lines of both."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from contract.events import (
    CheckpointWritten,
    Evaluated,
    ForecastMade,
    GenerationEnded,
    GenerationStarted,
    GroupJoined,
    LivenessReported,
    NodesEvent,
    OutputProgress,
    ProgressEvent,
    RankFailed,
    RankLeftOut,
    RankStarted,
    ResourcesSampled,
    StepDone,
    TrainingDone,
    TrainingResumed,
    TrainingStopped,
)
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.find_runs import FoundRuns, RunningContainer, find_runs, running_containers
from orchestrator.fleet.runs.one_supervisor import supervisor_of, supervisor_sought
from orchestrator.fleet.runs.read_logs import run_line
from orchestrator.fleet.runs.secrets import veil_at
from orchestrator.nodes.interface import Node
from orchestrator.specs.past_run import HistoryEntry
from orchestrator.specs.run import Run
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import JournalRead, LineRead, RunSeen
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.phase import Phase, has_ended, phase_of
from orchestrator.state.recovery import End
from orchestrator.state.reduce import apply
from orchestrator.state.run_outcome import outcome_of
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord, recorded_runs

LOOK_BACK = 200
"""Newest lines of each container, and newest events of each frequent kind."""
FEW = 20
"""Newest reports of progress of a run in a list."""
LOOK_AHEAD = 1000
"""First lines of rank 0 that are searched for a forecast: a script of the user's has none, and may write much."""
MOST_EVENTS = 2000
"""Newest rare events of the record."""
TIMEOUT_S = 20.0
UNKNOWN_END = "its end was not seen from here"
_RARE = (
    ForecastMade, GenerationEnded, GenerationStarted, GroupJoined, LivenessReported, NodesEvent, RankFailed,
    RankLeftOut, RankStarted, TrainingDone, TrainingResumed, TrainingStopped,
)  # fmt: skip
_FREQUENT = (CheckpointWritten, Evaluated, OutputProgress, ResourcesSampled, StepDone)
"""Events of which the newest are enough, with that number of each."""


def recorded_state(record: RunRecord, seen: float, *, unreachable: Collection[str] | None = None) -> RunState:
    """The state of a run of which no node shows a container. `unreachable`: nodes that did not answer when they were
    asked for it; None: no node was asked."""
    state = _begin(record, seen)
    if unreachable is not None:
        apply(state, RunSeen(seen=seen, run=None, unreachable=tuple(unreachable)))
    read_record(state, record, seen)
    return state


def read_record(state: RunState, record: RunRecord, seen: float) -> None:
    """Take the recorded lines of the current attempt into account: there are none of one that is not yet recorded as
    started."""
    if state.is_ahead_of_record:
        return
    names = [one.name for one in state.members] or list(record.names)
    _read(state, _recorded(record), [_recorded_tail(record, name) for name in names], seen)


def recorded_progress(record: RunRecord, seen: float) -> RunState:
    """The state of a run by its record and its newest reports of progress alone: for a list of many runs."""
    state = _begin(record, seen)
    for kind in (ProgressEvent, OutputProgress):
        newest = list(islice(record.events(kind, containers=record.journal.containers or None, newest_first=True), FEW))
        for line in reversed(newest):
            apply(state, LineRead(seen=seen, line=line))
    return state


def samples_per_step_of(record: RunRecord) -> int | None:
    """Samples of each step, as ranks of any attempt reported them last; None if they did not."""
    events = (line.event for line in record.events(GroupJoined, newest_first=True))
    return next((one.samples_per_step for one in events if isinstance(one, GroupJoined) and one.samples_per_step), None)


def recorded_phase(record: RunRecord, seen: float) -> Phase:
    """The phase of a run of which no node shows a container, by the entries of its record alone."""
    state = RunState(run_id=record.run_id)
    apply(state, JournalRead(seen=seen, journal=record.journal))
    apply(state, RunSeen(seen=seen, run=None))
    return phase_of(state)


def recorded_history() -> list[HistoryEntry]:
    """All runs on record, newest first, including those with no containers left on any node."""
    return [_past_run(record) for record in recorded_runs()]


def _past_run(record: RunRecord) -> HistoryEntry:
    """The run in the list."""
    state, reason = record.outcome() or (recorded_phase(record, time.time()).value, UNKNOWN_END)
    if plan := record.plan_values():
        with suppress(KeyError, TypeError):
            return HistoryEntry(
                run_id=record.run_id,
                state=state,
                reason=reason,
                started_at=str(plan["started_at"]),
                command=shlex.join(plan["command"]),
                user=str(plan["user"]),
                nodes=tuple(str(part["node"]) for part in plan["nodes"]),
            )
    reason = record.unreadable or "its launch was cut short"
    return HistoryEntry(run_id=record.run_id, state=state, reason=reason, started_at="", command="")


def state_without_lines(run: Run, found: FoundRuns, seen: float) -> RunState:
    """The state of a run by its containers and its record alone: no log is read."""
    record = RunRecord(run.run_id)
    state = _begin(record, seen)
    apply(state, RunSeen(seen=seen, run=run, unreachable=tuple(found.unreachable)))
    if run.is_going and not state.is_ahead_of_record:
        _read(state, _recorded(record), (), seen)
    return state


def states_of(found: FoundRuns, seen: float) -> list[tuple[Run, RunState]]:
    """All runs on the nodes, each with its state: no log is read."""
    return [(run, state_without_lines(run, found, seen)) for run in found.runs]


def load_state(run: Run, found: FoundRuns, nodes: Mapping[str, Node], seen: float) -> RunState:
    """The state of a run that nodes show, with the newest lines of each of its containers."""
    record = RunRecord(run.run_id)
    state = _begin(record, seen)
    apply(state, RunSeen(seen=seen, run=run, unreachable=tuple(found.unreachable)))
    containers = running_containers(run, nodes)
    outcomes = fan_out(containers, lambda one: _newest_lines(one, record), timeout_s=TIMEOUT_S)
    tails = {one.item.node.name: one.result for one in outcomes if one.result}
    recorded: Iterable[RunLine] = ()
    if not state.is_ahead_of_record:
        recorded = _recorded(record)
        tails |= {one.name: _recorded_tail(record, one.name) for one in state.members if one.name not in tails}
    if state.recorded_forecast is None:
        recorded = [*recorded, *_first_forecast(containers, record)]
    _read(state, recorded, tails.values(), seen)
    _record_end(state, record)
    return state


def _record_end(state: RunState, record: RunRecord) -> None:
    """Record the end that nodes show, where no process is left that would: its coordinator, its exit codes or a request
    to stop say that no engine starts a container again. A scheduler may start a job again."""
    journal, plan = state.journal, state.plan
    members, ended_well = state.members, phase_of(state) is Phase.SUCCEEDED
    coordinator = state.coordinator
    is_final = ended_well or journal.stop or (coordinator and coordinator.part.finished)
    if not (plan and journal.current and members and is_final) or (journal.end and not journal.is_lost):
        return
    if state.is_job or state.attempt != journal.current.number or not all(has_ended(one) for one in members):
        return
    with record.recorder() as lock, suppress(OSError):
        if supervisor_of(record) is None and lock.take():
            outcome = outcome_of(state, plan, End(), [one.name for one in members])
            record.note_end(plan.attempt, outcome.phase.value, outcome.failure.reason if outcome.failure else "")


def journal_of(record: RunRecord, seen: float) -> JournalRead:
    """The record as a fact."""
    return JournalRead(seen=seen, journal=record.journal, plan=record.plan(), forecast=record.forecast())


def _begin(record: RunRecord, seen: float) -> RunState:
    state = RunState(run_id=record.run_id)
    apply(state, journal_of(record, seen))
    apply(state, supervisor_sought(record, seen))
    return state


def _read(state: RunState, recorded: Iterable[RunLine], tails: Iterable[list[RunLine]], seen: float) -> None:
    """Take lines into account in the order in which each node wrote them: recorded events, then the newest lines."""
    whole = [tail for tail in tails if tail]
    begins = {tail[0].node: tail[0].time for tail in whole}
    for line in sorted(recorded, key=lambda one: one.time):
        if line.node not in begins or line.time < begins[line.node]:
            apply(state, LineRead(seen=seen, line=line))
    for tail in whole:
        for line in tail:
            apply(state, LineRead(seen=seen, line=line))


def _recorded(record: RunRecord) -> Iterator[RunLine]:
    """Recorded events of the current attempt; where its containers are not known, all are taken to be of it."""
    containers = record.journal.containers or None
    for kinds in (_RARE, *((kind,) for kind in _FREQUENT)):
        found = record.events(*kinds, containers=containers, newest_first=True)
        yield from islice(found, MOST_EVENTS if kinds is _RARE else LOOK_BACK)


def _recorded_tail(record: RunRecord, name: str) -> list[RunLine]:
    """The newest recorded lines of a node in the current attempt, oldest first."""
    containers = record.journal.containers
    if containers and name not in containers:
        return []
    return list(islice(record.newest(name, containers.get(name, "")), LOOK_BACK))[::-1]


def _newest_lines(container: RunningContainer, record: RunRecord) -> list[RunLine]:
    veil = veil_at(container.node, container.secrets, record.veil)
    lines = islice(container.node.engine.logs(container.id, tail=LOOK_BACK), LOOK_BACK)
    return [run_line(container, line, veil) for line in lines]


def _first_forecast(containers: Sequence[RunningContainer], record: RunRecord) -> list[RunLine]:
    """The line with the forecast that rank 0 makes before its first step: it says which node leads."""

    def first(container: RunningContainer) -> RunLine | None:
        for line in islice(container.node.engine.logs(container.id), LOOK_AHEAD):
            entry = run_line(container, line, record.veil)
            if isinstance(entry.event, ForecastMade):
                return entry
            if isinstance(entry.event, ProgressEvent):
                return None
        return None

    outcomes = fan_out([one for one in containers if one.node_rank == 0], first, timeout_s=TIMEOUT_S)
    return [one.result for one in outcomes if one.result]


def collect_figures(nodes: Sequence[Node], *, some: bool = False) -> FleetFigures:
    """Figures of all runs that the nodes hold. A node without an answer is one of the figures, not an error. `some`:
    as of `find_runs`."""
    began, at = time.monotonic(), time.time()
    found = find_runs(nodes, some=some)
    by_name = {node.name: node for node in nodes}

    def of_run(run: Run) -> RunState:
        return load_state(run, found, by_name, at) if run.is_going else state_without_lines(run, found, at)

    runs = tuple(of_run(run) for run in found.runs)
    seconds = time.monotonic() - began
    return FleetFigures(nodes=tuple(by_name), unreachable=found.unreachable, runs=runs, at=at, seconds=seconds)
