"""Decisions for a run in which something fails. Pure: its state and the time come in, decisions go out.

Inside the containers, agents restart the ranks. The supervisor handles a container that was killed by hand, which
Docker does not restart; a node that stays absent; a node that returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from contract.events import CheckpointWritten
from orchestrator.specs.run import State
from orchestrator.specs.run_events import NodeBack, NodeLost, RunEvent, RunLine
from orchestrator.state.limits import LEAVE_S
from orchestrator.state.phase import STOPPED_CODE, has_ended
from orchestrator.state.run_state import NodeState, RunState

SETTLE_S = 1.5
"""Seconds between the first failure and the stop of its peers, in which these can report it."""
KILLED_S = 5.0
"""Seconds between the exit of a killed container and its next start: `orch stop` elsewhere removes it by then."""
KILLED_CODES = (137, STOPPED_CODE, 255)
"""Exit codes after SIGKILL, SIGTERM and a crash of Docker: Docker does not restart after these."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits on restarts and on waiting."""

    max_restarts: int = 0
    """Maximum number of starts of a container that was killed by hand."""
    node_timeout_s: float = 0.0
    min_nodes: int = 0
    """Number of nodes that the run needs; 0: all of them."""
    no_answer_s: float = 0.0
    """Seconds for which all nodes may be silent: the controller is probably cut off, and the run continues."""


@dataclass(frozen=True, kw_only=True)
class StartContainer:
    """Start the container of this node: it was killed."""

    node: str


@dataclass(frozen=True, kw_only=True)
class DisableRestart:
    """The coordinator has ended the run: the engines of these nodes are not to start it again. Without a supervisor
    they do, and each of these starts ends at once."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StopOthers:
    """The run has failed: stop these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """These nodes are absent for too long, and the run needs them: stop it."""

    nodes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Replan:
    """These nodes are absent for too long: stop the attempt, start the next one on `left`."""

    without: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AddNodes:
    """A checkpoint was written, and these nodes are back: stop the attempt, start the next one with them."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NoNodeAnswers:
    """No node answers: the state of the run is unknown."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class End:
    """All containers that can be seen have ended."""


Decision = StartContainer | DisableRestart | StopOthers | GiveUp | Replan | AddNodes | NoNodeAnswers | End
Update = RunEvent | Decision
"""An event, or a decision that follows from one."""
LAST = (GiveUp, Replan, AddNodes, NoNodeAnswers, End)
"""Decisions that end the following of an attempt."""


@dataclass(frozen=True, kw_only=True)
class Supervising:
    """Actions of the supervisor for an attempt, and facts that it knows beside its state."""

    starts: Mapping[str, int] = field(default_factory=dict)
    """Starts of the killed container of a node."""
    stop_others_at: float | None = None
    """Time when the remaining nodes are to be stopped: once the run has failed, later reports change nothing."""
    restart_disabled: bool = False
    others_stopped: bool = False
    given_up: frozenset[str] = frozenset()
    """Nodes that were lost once the others were to be stopped: nothing stops them, even if they answer again."""
    back: tuple[str, ...] = ()
    """Absent nodes that are fit again."""


def decide(
    state: RunState, done: Supervising, policy: Policy, run_event: RunEvent, now: float
) -> tuple[Supervising, tuple[Decision, ...]]:
    """Decisions after an event that the state has taken into account; none: wait. `now`: by the clock of its facts."""
    if isinstance(run_event, NodeBack) and run_event.node not in {one.name for one in state.members}:
        done = replace(done, back=tuple(sorted({*done.back, run_event.node})))
    if isinstance(run_event, NodeLost) and done.others_stopped:
        done = replace(done, given_up=done.given_up | {run_event.node})
    seen = _Situation(state, done, policy)
    done, decisions = _decide(seen, now)
    if seen.is_ended and seen.running and not done.restart_disabled:
        done, decisions = replace(done, restart_disabled=True), (DisableRestart(nodes=seen.running), *decisions)
    done = replace(done, stop_others_at=seen.stop_others_at)
    stopping = state.journal.stop is not None or done.stop_others_at is not None
    event = run_event.event if isinstance(run_event, RunLine) else None
    # A verified checkpoint was just written: a stop now loses nothing.
    if isinstance(event, CheckpointWritten) and event.verified and done.back and not (stopping or decisions):
        return done, (AddNodes(nodes=done.back),)
    return done, decisions


def matters(run_event: RunEvent) -> bool:
    """Return whether a decision may follow from an event at once: from a line of a rank it does not."""
    return not isinstance(run_event, RunLine) or run_event.rank is None or run_event.event is not None


class _Situation:
    """Nodes of an attempt by what has become of them."""

    def __init__(self, state: RunState, done: Supervising, policy: Policy) -> None:
        self.state, self.done, self.policy = state, done, policy
        members = state.members
        self.nodes = tuple(one.name for one in members)
        """Nodes in order of node_rank: the agent of the first reports for all."""
        self.lost = {one.name: one.silent_since for one in members if one.silent_since is not None}
        self.killed = {one.name: _ended_at(one) for one in members if self._is_killed(one)}
        self.open = tuple(
            one.name for one in members if one.name in self.killed or not (has_ended(one) or one.is_missing)
        )
        absent = {*self.lost, *self.killed, *done.given_up}
        self.running = tuple(name for name in self.open if name not in absent)
        self.is_stopped = any(one.part.stopped for one in members)
        coordinator = members[0].part if members else None
        finished = coordinator.finished if coordinator else None
        self.is_ended = finished is not None and finished.outcome != "done"
        """True if the coordinator has ended the run with an exit code for which an engine starts a container again."""
        known = coordinator.unresponsive if coordinator else {}
        self.unresponsive = {name: since for name, since in known.items() if name in self.nodes}
        self.progress = max((one.part.rank_seen_at for one in members), default=0.0)
        leaving = [one.part.finished_at + LEAVE_S for one in members if one.part.finished_at is not None]
        failing = [_ended_at(one) + SETTLE_S for one in members if self._has_failed(one)]
        decided = [] if done.stop_others_at is None else [done.stop_others_at]
        self.stop_others_at = min((*decided, *leaving, *failing), default=None)
        """Time when the remaining nodes are to be stopped."""

    @property
    def none_answers(self) -> bool:
        return all(name in self.lost for name in self.open)

    def _is_killed(self, node: NodeState) -> bool:
        """Return whether the container on a node was killed, and is to be started again."""
        facts = node.container
        if facts is None or not has_ended(node) or facts.state is State.SUCCEEDED or node.part.finished_at is not None:
            return False
        starts = self.done.starts.get(node.name, 0)
        return facts.exit_code in KILLED_CODES and not facts.oom_killed and starts < self.policy.max_restarts

    def _has_failed(self, node: NodeState) -> bool:
        """Return whether the container on a node has ended for good, and the others are to be stopped."""
        facts = node.container
        if facts is None or not has_ended(node) or facts.state is State.SUCCEEDED or node.name in self.killed:
            return False
        asked = self.is_stopped or facts.exit_code == STOPPED_CODE
        return not asked and node.part.finished_at is None


def _ended_at(node: NodeState) -> float:
    return node.ended_at or 0.0


def _decide(s: _Situation, now: float) -> tuple[Supervising, tuple[Decision, ...]]:
    done, policy = s.done, s.policy
    if _is_over(s):
        return done, (End(),)
    if s.stop_others_at is not None or s.state.journal.stop:
        if s.stop_others_at is None or done.others_stopped or now < s.stop_others_at:
            return done, ()
        return replace(done, others_stopped=True), (StopOthers(nodes=s.running),)
    if gone := {name: at for name, at in _gone_since(s).items() if now - at >= policy.node_timeout_s}:
        left = tuple(name for name in s.open if name not in gone and name not in s.lost)
        if policy.min_nodes and len(left) >= policy.min_nodes:
            return done, (Replan(without=tuple(name for name in s.nodes if name not in left), left=left),)
        return done, (GiveUp(nodes=tuple(gone), seconds=now - min(gone.values())),)
    if s.none_answers:
        seconds = now - max(s.lost.values())
        # Where all nodes are silent, the supervisor is cut off, and they may train. Where one has ended they cannot,
        # and waiting for a day would be in vain.
        has_end = len(s.open) < len(s.nodes)
        limit_s = min(policy.node_timeout_s, policy.no_answer_s) if has_end else policy.no_answer_s
        return done, (NoNodeAnswers(seconds=seconds),) if seconds >= limit_s else ()
    due = [name for name, since in s.killed.items() if now - since >= KILLED_S and name not in s.lost]
    starts = {**done.starts, **{name: done.starts.get(name, 0) + 1 for name in due}}
    return replace(done, starts=starts), tuple(StartContainer(node=name) for name in due)


def _is_over(s: _Situation) -> bool:
    """Return whether no container runs that can be seen, and none is to be started."""
    if s.running:
        return False
    if s.stop_others_at is not None or s.state.journal.stop or not s.open:
        return True  # what is lost is not waited for
    codes = {one.container.exit_code for one in s.state.members if one.name in s.killed and one.container}
    # A requested stop that ranks reported holds for the nodes that do not answer, too.
    return codes == {STOPPED_CODE} and set(s.open) <= {*s.killed, *(s.lost if s.is_stopped else ())}


def _gone_since(s: _Situation) -> dict[str, float]:
    """Absent nodes, since when; none where no node answers: then the supervisor is cut off."""
    if s.none_answers or not (s.unresponsive or s.lost):
        return {}
    since, others = dict(s.unresponsive), set(s.nodes[1:])
    if len(others) > 1 and others <= set(since) and not others & set(s.lost):
        since = {s.nodes[0]: max(since.values())}  # the node that misses all others is the one that is cut off
    for name, at in s.lost.items():
        silent = max(at, s.progress)  # while ranks make progress, only the supervisor has lost it
        since[name] = min(since.get(name, silent), silent)
    return {name: at for name, at in since.items() if name in s.open}
