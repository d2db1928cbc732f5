"""Decisions for a run in which something fails. Pure: events and the clock come in, decisions go out.

Inside the containers, agents restart the ranks. The supervisor handles a container that was killed by hand, which
Docker does not restart; a node that stays absent; a node that returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from contract.events import (
    CheckpointWritten,
    Event,
    Finished,
    GenerationStarted,
    NodesEvent,
    NodesRecovered,
    NodesStalled,
    TrainingStopped,
    WaitingForNodes,
)
from orchestrator.specs.run import State
from orchestrator.specs.run_events import ContainerExited, ContainerRemoved, NodeBack, NodeLost, RunEvent, RunLine

Held = TypeVar("Held")

SETTLE_S = 1.5
"""Seconds between the first failure and the stop of its peers, in which these can report it."""
LEAVE_S = 10.0
"""Seconds in which agents can exit after the first one reported `finished`."""
KILLED_S = 5.0
"""Seconds between the exit of a killed container and its next start: `orch stop` elsewhere removes it by then."""
STOPPED_CODE = 143
"""Exit code after SIGTERM; with SIGKILL and a crash of Docker, the codes that Docker does not restart after."""
KILLED_CODES = (137, STOPPED_CODE, 255)


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


Decision = StartContainer | StopOthers | GiveUp | Replan | AddNodes | NoNodeAnswers | End
Update = RunEvent | Decision
"""An event, or a decision that follows from one."""
LAST = (GiveUp, Replan, AddNodes, NoNodeAnswers, End)
"""Decisions that end the following of an attempt."""


@dataclass(frozen=True, kw_only=True)
class AttemptState:
    """State of an attempt, as far as events show it. Times are seconds of the supervisor's clock."""

    nodes: tuple[str, ...]
    """In order of node_rank: the agent of the first reports for all."""
    policy: Policy
    ended: frozenset[str] = frozenset()
    """Nodes that have ended, and are not started again."""
    killed: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Nodes with a killed container: since when, and its exit code."""
    starts: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    """Nodes that do not answer the supervisor, since when."""
    unresponsive: Mapping[str, float] = field(default_factory=dict)
    """Nodes that other nodes wait for, since when."""
    reported_done: frozenset[str] = frozenset()
    """Nodes with an agent that reported `finished`."""
    stopped: bool = False
    """Whether the ranks were asked to stop and did."""
    stop_requested: bool = False
    """Whether `orch stop` was called."""
    stop_others_at: float | None = None
    """When the remaining nodes are to be stopped."""
    others_stopped: bool = False
    progress: float = 0.0
    """When a rank last wrote a line."""
    back: tuple[str, ...] = ()
    """Absent nodes that are fit again."""

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if name not in self.ended)

    @property
    def running(self) -> tuple[str, ...]:
        """Nodes that answer and have a container that runs."""
        return tuple(name for name in self.open if name not in self.lost and name not in self.killed)

    # These are asked after each line of each node: without looking at all nodes.

    @property
    def is_running(self) -> bool:
        """Whether there are `running` nodes."""
        absent = (self.lost.keys() | self.killed.keys()) - self.ended
        return len(self.ended) + len(absent) < len(self.nodes)

    @property
    def none_answers(self) -> bool:
        """Whether all `open` nodes are lost."""
        return len(self.ended) + len(self.lost.keys() - self.ended) >= len(self.nodes)


def step(state: AttemptState, run_event: RunEvent, now: float) -> tuple[AttemptState, tuple[Decision, ...]]:
    """The state after the event, and decisions; none: wait."""
    new_state, decisions = _decide(_apply(state, run_event, now), now)
    event = run_event.event if isinstance(run_event, RunLine) else None
    stopping = new_state.stop_requested or new_state.stop_others_at is not None
    # A verified checkpoint was just written: a stop now loses nothing.
    if isinstance(event, CheckpointWritten) and event.verified and new_state.back and not (stopping or decisions):
        return new_state, (AddNodes(nodes=new_state.back),)
    return new_state, decisions


def request_stop(state: AttemptState) -> AttemptState:
    """Note that the run is being stopped: what ends now is not started again."""
    return replace(state, stop_requested=True)


def _apply(s: AttemptState, run_event: RunEvent, now: float) -> AttemptState:
    if isinstance(run_event, RunLine):
        s = replace(s, progress=now) if run_event.rank is not None else s
        return _apply_event(s, run_event.node, run_event.event, now)
    if isinstance(run_event, ContainerExited):
        return _end(s, run_event, now)
    if isinstance(run_event, ContainerRemoved):
        return replace(s, ended=s.ended | {run_event.node}, killed=_without(s.killed, run_event.node))
    if isinstance(run_event, NodeLost):
        return replace(s, lost={**s.lost, run_event.node: s.lost.get(run_event.node, now)})
    if isinstance(run_event, NodeBack):
        if run_event.node not in s.nodes:
            return replace(s, back=tuple(sorted({*s.back, run_event.node})))
        return replace(s, lost=_without(s.lost, run_event.node))
    return s


def _apply_event(s: AttemptState, node: str, event: Event | None, now: float) -> AttemptState:
    """Rank 0's agent reports which nodes are missing; each agent reports `finished` for itself."""
    if isinstance(event, Finished):
        return replace(
            s,
            reported_done=s.reported_done | {node},
            stop_others_at=now + LEAVE_S if s.stop_others_at is None else s.stop_others_at,
        )
    if isinstance(event, TrainingStopped):
        return replace(s, stopped=True)
    if node != s.nodes[0]:
        return s
    if isinstance(event, GenerationStarted):
        return replace(s, unresponsive={}, stopped=False)
    if not isinstance(event, NodesEvent):
        return s
    since = now - (event.seconds or 0.0)
    names = [name for name in event.nodes or () if name in s.nodes]
    if isinstance(event, WaitingForNodes):
        return replace(s, unresponsive={name: min(s.unresponsive.get(name, since), since) for name in names})
    if isinstance(event, NodesStalled):
        return replace(s, unresponsive={**dict.fromkeys(names, since), **s.unresponsive})
    return replace(s, unresponsive=_without(s.unresponsive, *names)) if isinstance(event, NodesRecovered) else s


def _end(s: AttemptState, ended: ContainerExited, now: float) -> AttemptState:
    node, code = ended.node, ended.container.exit_code
    final = replace(s, ended=s.ended | {node}, killed=_without(s.killed, node))
    if ended.container.state is State.SUCCEEDED or node in s.reported_done:
        return final
    if code in KILLED_CODES and not ended.container.oom_killed and s.starts.get(node, 0) < s.policy.max_restarts:
        return replace(s, killed={**s.killed, node: (now, code)})
    if s.stopped or code == STOPPED_CODE:
        return final
    return replace(
        final, stop_others_at=now + SETTLE_S if s.stop_others_at is None else min(s.stop_others_at, now + SETTLE_S)
    )


def _decide(s: AttemptState, now: float) -> tuple[AttemptState, tuple[Decision, ...]]:
    if _is_over(s):
        return s, (End(),)
    if s.stop_others_at is not None or s.stop_requested:
        if s.stop_others_at is None or s.others_stopped or now < s.stop_others_at:
            return s, ()
        return replace(s, others_stopped=True), (StopOthers(nodes=s.running),)
    if gone := {name: at for name, at in _gone_since(s).items() if now - at >= s.policy.node_timeout_s}:
        left = tuple(name for name in s.open if name not in gone and name not in s.lost)
        if s.policy.min_nodes and len(left) >= s.policy.min_nodes:
            return s, (Replan(without=tuple(name for name in s.nodes if name not in left), left=left),)
        return s, (GiveUp(nodes=tuple(gone), seconds=now - min(gone.values())),)
    if s.none_answers:
        seconds = now - max(s.lost.values())
        # Where all nodes are silent, the supervisor is cut off, and they may train. Where one has ended they cannot,
        # and waiting for a day would be in vain.
        limit_s = min(s.policy.node_timeout_s, s.policy.no_answer_s) if s.ended else s.policy.no_answer_s
        return s, (NoNodeAnswers(seconds=seconds),) if seconds >= limit_s else ()
    due = [name for name, (since, _) in s.killed.items() if now - since >= KILLED_S and name not in s.lost]
    starts = {**s.starts, **{name: s.starts.get(name, 0) + 1 for name in due}}
    return replace(s, starts=starts, killed=_without(s.killed, *due)), tuple(StartContainer(node=name) for name in due)


def _is_over(s: AttemptState) -> bool:
    """Whether no container runs that can be seen, and none is to be started."""
    if s.is_running:
        return False
    if s.stop_others_at is not None or s.stop_requested or not s.open:
        return True  # what is lost is not waited for
    all_stopped = {code for _, code in s.killed.values()} == {STOPPED_CODE}
    # A requested stop that ranks reported holds for the nodes that do not answer, too.
    return all_stopped and set(s.open) <= {*s.killed, *(s.lost if s.stopped else ())}


def _gone_since(s: AttemptState) -> dict[str, float]:
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


def _without(held: Mapping[str, Held], *names: str) -> dict[str, Held]:
    return {name: value for name, value in held.items() if name not in names}
