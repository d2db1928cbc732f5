"""What to do when something of a run breaks. Pure: what happens and the clock come in, decisions go out.

Inside the containers supervisors start the ranks again by themselves. What is left for whoever watches: a container
that was killed by hand, which Docker takes for a wish; a node that stays away; one that comes back.
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
"""After the first failure, time for its peers to say what they saw, before they are stopped."""
LEAVE_S = 10.0
"""After the supervisors agreed that all is over, time for each to end."""
KILLED_S = 5.0
"""Between a container's silent end and its next start: `orch stop` from another controller removes it by then."""
TOLD_TO_STOP = 143
"""Exit code after SIGTERM, and of those that Docker takes for a wish: SIGKILL, and what a crash of Docker leaves."""
PUT_DOWN = (137, TOLD_TO_STOP, 255)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a run is to be spared, and what not."""

    max_restarts: int = 0
    """Of one node's container, if it was killed by hand."""
    node_timeout_s: float = 0.0
    enough: int = 0
    """Nodes that the run may go on with; 0: it needs all of them."""
    out_of_sight_s: float = 0.0
    """How long no node at all may answer: then it is the controller that is cut off, and the run may well go on."""


@dataclass(frozen=True, kw_only=True)
class StartAgain:
    """The container of this node was killed: start it."""

    node: str


@dataclass(frozen=True, kw_only=True)
class StopRest:
    """The run has ended badly: these have not."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """These nodes are gone for too long, and without them the run is not to go on: stop it."""

    nodes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlanAnew:
    """These nodes are gone for too long: stop the run and go on with `left`."""

    without: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TakeIn:
    """A checkpoint was just written, and these nodes are back: stop the run and go on with them too."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OutOfSight:
    """No node answers. What the run does, nobody here knows."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class End:
    """All has ended that can be seen."""


Decision = StartAgain | StopRest | GiveUp | PlanAnew | TakeIn | OutOfSight | End
Told = RunEvent | Decision
"""What whoever follows a run is told of."""
LAST = (GiveUp, PlanAnew, TakeIn, OutOfSight, End)
"""After these nothing more is asked of this attempt."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """How an attempt is, as far as it was heard. Times are the watcher's clock, in seconds."""

    nodes: tuple[str, ...]
    """In order of node_rank: the supervisor of the first speaks for all."""
    policy: Policy
    ended: frozenset[str] = frozenset()
    """For good."""
    put_down: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Containers that ended without a word: since when, and with what exit code."""
    starts: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    """Nodes that do not answer the watcher, since when."""
    missed: Mapping[str, float] = field(default_factory=dict)
    """Nodes that the others wait for, since when."""
    spoken: frozenset[str] = frozenset()
    """Nodes whose supervisor said that all is over."""
    stopped: bool = False
    """Whether the ranks were asked to stop and did."""
    asked: bool = False
    """Whether somebody stops the run."""
    closing: float | None = None
    """When what is left is to be stopped."""
    resting: bool = False
    progress: float = 0.0
    """When a rank last said anything."""
    back: tuple[str, ...] = ()
    """Nodes given up that answer again."""

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if name not in self.ended)

    @property
    def running(self) -> tuple[str, ...]:
        """Those that can be told something, and have something to be told to."""
        return tuple(name for name in self.open if name not in self.lost and name not in self.put_down)


def step(now_is: Situation, happening: RunEvent, now: float) -> tuple[Situation, tuple[Decision, ...]]:
    """The situation after it, and what is to be done. An empty answer: wait."""
    situation, decisions = _decide(_see(now_is, happening, now), now)
    if not decisions and _may_take_in(situation, happening):
        return situation, (TakeIn(nodes=situation.back),)
    return situation, decisions


def asked_to_stop(now_is: Situation) -> Situation:
    """Somebody stops this run: what ends now is to stay ended."""
    return replace(now_is, asked=True)


def _see(s: Situation, happening: RunEvent, now: float) -> Situation:
    if isinstance(happening, RunLine):
        s = replace(s, progress=now) if happening.rank is not None else s
        return _hear(s, happening.node, happening.event, now)
    if isinstance(happening, ContainerExited):
        return _end(s, happening, now)
    if isinstance(happening, ContainerRemoved):
        return replace(s, ended=s.ended | {happening.node}, put_down=_without(s.put_down, happening.node))
    if isinstance(happening, NodeLost):
        return replace(s, lost={**s.lost, happening.node: s.lost.get(happening.node, now)})
    if isinstance(happening, NodeBack):
        if happening.node not in s.nodes:
            return replace(s, back=tuple(sorted({*s.back, happening.node})))
        return replace(s, lost=_without(s.lost, happening.node))
    return s


def _hear(s: Situation, node: str, event: Event | None, now: float) -> Situation:
    """Rank 0's agent reports which nodes are missing; each agent reports `finished` for itself."""
    if isinstance(event, Finished):
        return replace(s, spoken=s.spoken | {node}, closing=now + LEAVE_S if s.closing is None else s.closing)
    if isinstance(event, TrainingStopped):
        return replace(s, stopped=True)
    if node != s.nodes[0]:
        return s
    if isinstance(event, GenerationStarted):
        return replace(s, missed={}, stopped=False)
    if not isinstance(event, NodesEvent):
        return s
    since = now - (event.seconds or 0.0)
    names = [name for name in event.nodes or () if name in s.nodes]
    if isinstance(event, WaitingForNodes):
        return replace(s, missed={name: min(s.missed.get(name, since), since) for name in names})
    if isinstance(event, NodesStalled):
        return replace(s, missed={**dict.fromkeys(names, since), **s.missed})
    return replace(s, missed=_without(s.missed, *names)) if isinstance(event, NodesRecovered) else s


def _end(s: Situation, ended: ContainerExited, now: float) -> Situation:
    node, code = ended.node, ended.container.exit_code
    final = replace(s, ended=s.ended | {node}, put_down=_without(s.put_down, node))
    if ended.container.state is State.SUCCEEDED or node in s.spoken:
        return final
    if code in PUT_DOWN and not ended.container.oom_killed and s.starts.get(node, 0) < s.policy.max_restarts:
        return replace(s, put_down={**s.put_down, node: (now, code)})
    if s.stopped or code == TOLD_TO_STOP:
        return final
    return replace(final, closing=now + SETTLE_S if s.closing is None else min(s.closing, now + SETTLE_S))


def _decide(s: Situation, now: float) -> tuple[Situation, tuple[Decision, ...]]:
    if _is_over(s):
        return s, (End(),)
    if s.closing is not None or s.asked:
        if s.closing is None or s.resting or now < s.closing:
            return s, ()
        return replace(s, resting=True), (StopRest(nodes=s.running),)
    if gone := {name: at for name, at in _gone_since(s).items() if now - at >= s.policy.node_timeout_s}:
        return s, (_without_them(s, gone, now),)
    if not set(s.open) - set(s.lost):
        seconds = now - max(s.lost.values())
        # Of nodes that all fell silent it is the watcher that is cut off, and they may train. Where another one has
        # ended they cannot, and a watcher that waits for them a day is left behind.
        patience_s = min(s.policy.node_timeout_s, s.policy.out_of_sight_s) if s.ended else s.policy.out_of_sight_s
        return s, (OutOfSight(seconds=seconds),) if seconds >= patience_s else ()
    return _start_again(s, now)


def _is_over(s: Situation) -> bool:
    """Nothing that can be seen goes on, and nothing is to be started again."""
    if s.running:
        return False
    if s.closing is not None or s.asked or not s.open:
        return True  # what is lost is not waited for
    all_told = {code for _, code in s.put_down.values()} == {TOLD_TO_STOP}
    unseen = set(s.lost) if s.stopped else set[str]()  # the ranks have said that they were asked to: so was it
    return all_told and set(s.open) <= set(s.put_down) | unseen


def _gone_since(s: Situation) -> dict[str, float]:
    """Nodes that are away, since when. Where none answers, it is rather the watcher that is."""
    if not set(s.open) - set(s.lost):
        return {}
    since, others = dict(s.missed), set(s.nodes[1:])
    if len(others) > 1 and others <= set(since) and not others & set(s.lost):
        since = {s.nodes[0]: max(since.values())}  # who misses everybody is the one that is cut off
    for name, at in s.lost.items():
        silent = max(at, s.progress)  # ranks that go on speak for it: then only the watcher has lost it
        since[name] = min(since.get(name, silent), silent)
    return {name: at for name, at in since.items() if name in s.open}


def _without_them(s: Situation, gone: Mapping[str, float], now: float) -> GiveUp | PlanAnew:
    left = tuple(name for name in s.open if name not in gone and name not in s.lost)
    if s.policy.enough and len(left) >= s.policy.enough:
        return PlanAnew(without=tuple(name for name in s.nodes if name not in left), left=left)
    return GiveUp(nodes=tuple(gone), seconds=now - min(gone.values()))


def _start_again(s: Situation, now: float) -> tuple[Situation, tuple[Decision, ...]]:
    due = [name for name, (since, _) in s.put_down.items() if now - since >= KILLED_S and name not in s.lost]
    starts = {**s.starts, **{name: s.starts.get(name, 0) + 1 for name in due}}
    return replace(s, starts=starts, put_down=_without(s.put_down, *due)), tuple(StartAgain(node=name) for name in due)


def _may_take_in(s: Situation, happening: RunEvent) -> bool:
    """At a checkpoint that was verified: nothing is lost by a stop now."""
    event = happening.event if isinstance(happening, RunLine) else None
    written = isinstance(event, CheckpointWritten) and event.verified
    return bool(written and s.back) and s.closing is None and not s.asked


def _without(held: Mapping[str, Held], *names: str) -> dict[str, Held]:
    return {name: value for name, value in held.items() if name not in names}
