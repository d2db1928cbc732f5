"""Phase of a run."""

from __future__ import annotations

from enum import StrEnum

from contract.events import Finished
from orchestrator.specs.run import ACTIVE, State
from orchestrator.state.limits import LAUNCH_S, RECENT_S
from orchestrator.state.run_state import NodeState, RunState

STOPPED_CODE = 143
"""Exit code after SIGTERM."""


class Phase(StrEnum):
    """Phase of a run: the words on every screen, in JSON and in the record."""

    QUEUED = "queued"
    """A job that its scheduler has not started yet."""
    LAUNCHING = "launching"
    """Claimed, and its containers are being made."""
    STARTING = "starting"
    """Containers run, and their agents have not started the ranks yet."""
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    """A stop was requested, and a container has not ended yet."""
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """No node that has a part of the run answers."""
    UNKNOWN = "unknown"
    """Its end was not seen from here."""

    @property
    def is_active(self) -> bool:
        """True if the run has not ended, as far as is known."""
        return self in ACTIVE_PHASES


ACTIVE_PHASES = (Phase.QUEUED, Phase.LAUNCHING, Phase.STARTING, Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING)


def phase_of(state: RunState) -> Phase:
    """The first row that applies: the record's end, its stop, then the containers, then the coordinator's reports."""
    members, journal = state.members, state.journal
    if state.is_ahead_of_record:
        return _by_containers(state, members)
    if journal.end and not (journal.is_lost and _is_seen_again(members)):
        return _recorded(journal.end.state)
    if journal.stop:
        is_over = members and all(has_ended(one) or one.is_missing for one in members)
        return Phase.STOPPED if is_over else Phase.STOPPING
    if _is_launching(state):
        return Phase.LAUNCHING
    return _by_containers(state, members)


def _is_launching(state: RunState) -> bool:
    """Return whether an attempt was claimed a short time ago, and none of its containers or of those before it runs."""
    pending = state.journal.pending
    if pending is None or (state.journal.current and any(one.container for one in state.members)):
        return False
    return state.as_of - pending.claim.at < LAUNCH_S or any(one.container for one in state.members)


def _is_seen_again(members: list[NodeState]) -> bool:
    """Return whether a node shows its container: the run was lost from sight, and may have continued."""
    return any(one.container and one.silent_since is None for one in members)


def _recorded(word: str) -> Phase:
    try:
        return Phase(word)
    except ValueError:
        return Phase.UNKNOWN


def _by_containers(state: RunState, members: list[NodeState]) -> Phase:
    shown = [one for one in members if one.container]
    answering = [one for one in shown if one.silent_since is None]
    if shown and all(has_ended(one) for one in members):
        return end_of(state, members)
    active = [one for one in answering if not has_ended(one)]
    if not active:
        return _by_coordinator(state) if _was_active(state) else _out_of_sight(state, members)
    statuses = {one.container.status for one in active if one.container}
    if statuses == {"queued"}:
        return Phase.QUEUED
    if "created" in statuses:
        return Phase.LAUNCHING
    return _by_coordinator(state)


def _was_active(state: RunState) -> bool:
    """Return whether the record alone is read, no node was asked, and the newest thing on record is new."""
    current, coordinator = state.journal.current, state.coordinator
    if state.was_looked_for or current is None or (coordinator and coordinator.part.finished):
        return False
    read = [one.part.read_at for one in state.members if one.part.read_at is not None]
    return state.as_of - max([current.claim.at, *read]) < RECENT_S


def _by_coordinator(state: RunState) -> Phase:
    coordinator = state.coordinator
    if coordinator is None:
        return Phase.RUNNING
    if coordinator.part.finished and not state.is_job:  # of which a scheduler may start the agents again
        return _outcome(coordinator.part.finished)
    if coordinator.part.is_restarting:
        return Phase.RESTARTING
    part = coordinator.part
    has_begun = part.starts or part.generation or part.ranks or part.progress
    return Phase.RUNNING if has_begun or not part.lines else Phase.STARTING


def _out_of_sight(state: RunState, members: list[NodeState]) -> Phase:
    """No container that runs can be seen."""
    coordinator = state.coordinator
    if coordinator and coordinator.part.finished:
        return _outcome(coordinator.part.finished)
    if any(one.silent_since is not None for one in members) or state.unreachable:
        return Phase.LOST
    ended = [one for one in members if has_ended(one)]  # containers of the others were removed
    return Phase.FAILED if ended and end_of(state, ended) is Phase.FAILED else Phase.UNKNOWN


def has_ended(node: NodeState) -> bool:
    """Return whether its container of the current attempt has ended."""
    return node.container is not None and node.container.state not in ACTIVE


def end_of(state: RunState, members: list[NodeState]) -> Phase:
    """Phase at the end of these members: the verdict of the agents counts; without one, their exit codes. Without
    members, all containers were removed."""
    if finished := state.finished:
        return _outcome(finished)
    if not members:
        was_stopped = state.journal.stop is not None or any(one.part.stopped for one in state.members)
        return Phase.STOPPED if was_stopped else Phase.FAILED
    if all(one.container and one.container.state is State.STOPPED for one in members):
        return Phase.STOPPED
    codes = {one.container.exit_code for one in members if one.container and one.container.status != "stopped"}
    if codes == {0}:
        return Phase.SUCCEEDED
    stopped = codes <= {0, STOPPED_CODE} or any(one.part.stopped for one in members)
    return Phase.STOPPED if stopped else Phase.FAILED


def _outcome(finished: Finished) -> Phase:
    words = {"done": Phase.SUCCEEDED, "stopped": Phase.STOPPED}
    return words.get(finished.outcome or "", Phase.FAILED)
