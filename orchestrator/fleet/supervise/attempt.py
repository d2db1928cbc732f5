"""Stay with an attempt of a run until it ends, or is to go on otherwise: what breaks is mended, named or stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.secrets import remove_secrets, veil_of
from orchestrator.fleet.supervise.attempt_state import Heard, RunOutcome
from orchestrator.fleet.supervise.follow import Following, Pause
from orchestrator.nodes.interface import Node
from orchestrator.plan import recovery
from orchestrator.plan.recovery import LAST, Decision, GiveUp, Policy, Situation, StartAgain, StopRest, Told
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, NodeBack, NodeLost, RunEvent, RunLine

STOP_S = 4
START_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Away:
    """A node without a part in the attempt."""

    node: Node
    ready: Callable[[], object]
    """Raises an error of ours until it could have one."""
    after_s: float = 0.0
    """It is not asked before."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """What an attempt is spared. Without any of it the first loss is the end."""

    policy: Policy = field(default_factory=Policy)
    away: Sequence[Away] = ()
    pause: Pause | None = None
    """How a follower waits between two tries to reach a node."""
    tick_s: float = 0.5


def attend(
    seated: Sequence[RunningContainer],
    plan: Plan,
    record: RunRecord,
    *,
    on: Callable[[Told], None] = lambda _told: None,
    clock: Callable[[], float] = time.monotonic,
    patience: Patience | None = None,
) -> RunOutcome:
    """Follow until all have ended. `on` is told of all that happens and of all that is decided.

    The first failure for good stops the rest: a dead rank leaves its peers hanging for 300 s.
    """
    patience = patience or Patience()
    record.veil = veil_of(plan)  # the plan on record has no values
    patient = patience.policy.node_timeout_s > 0
    following = Following(record, tick_s=patience.tick_s, patient=patient, pause=patience.pause)
    attending = _Attending(seated, Heard(plan=plan, record=record), following)
    for seat in seated:
        following.listen(seat)
    for one in patience.away:
        following.look_out(one.node, one.ready, after_s=one.after_s)
    situation = Situation(nodes=tuple(seat.node.name for seat in seated), policy=patience.policy)
    for happening in following.happenings():
        on(happening)
        attending.see(happening)
        if record.is_stopping():
            situation = recovery.asked_to_stop(situation)
        todo = [happening]
        while todo:
            situation, decisions = recovery.step(situation, todo.pop(0), clock())
            for decision in decisions:
                on(decision)
                if isinstance(decision, LAST):
                    following.close()
                    return attending.leave(decision, asked=situation.asked)
                todo += attending.carry_out(decision)
    return attending.leave(recovery.End(), asked=situation.asked)


class _Attending:
    """The hands of it: what was decided, done on the nodes."""

    def __init__(self, seated: Sequence[RunningContainer], heard: Heard, following: Following) -> None:
        self._seats = {seat.node.name: seat for seat in seated}
        self._heard, self._following = heard, following

    def see(self, happening: RunEvent) -> None:
        if isinstance(happening, RunLine):
            self._heard.say(happening)
        elif isinstance(happening, ContainerExited):
            self._heard.end(happening)
        elif isinstance(happening, NodeLost):
            self._heard.lost[happening.node] = happening.error.message
        elif isinstance(happening, NodeBack):
            self._heard.lost.pop(happening.node, None)
            if happening.container:
                self._seats[happening.node] = replace(self._seats[happening.node], container=happening.container)

    def carry_out(self, decision: Decision) -> list[RunEvent]:
        """What came of it."""
        if isinstance(decision, StartAgain):
            self._start_again(self._seats[decision.node])
        if isinstance(decision, StopRest):
            return [*self._stop(decision.nodes)]
        return []

    def leave(self, decision: Decision, *, asked: bool) -> RunOutcome:
        """Nobody listens any more; a run that is given up is stopped wherever it can be."""
        heard = self._heard
        if isinstance(decision, GiveUp):
            self._stop([name for name in self._seats if name not in heard.lost])
        outcome = heard.outcome(decision, asked=asked)
        if outcome.then is None:
            here = [seat for name, seat in self._seats.items() if name not in heard.lost]
            fan_out(here, lambda seat: remove_secrets(seat.node, seat.secrets), timeout_s=STOP_S)
            with suppress(OSError):  # a disk that is full was told of when the lines did not fit
                heard.record.save_outcome(outcome.word, outcome.failure.reason if outcome.failure else "")
        return outcome

    def _start_again(self, seat: RunningContainer) -> None:
        """Where it cannot be started, whoever listens to it finds out why."""
        fan_out([seat], lambda seat: seat.node.engine.start(seat.container), timeout_s=START_S)
        self._following.listen(seat, since=self._heard.record.last_time(seat.node.name, seat.container))

    def _stop(self, names: Sequence[str]) -> list[NodeLost]:
        """All at once: one node stopped alone leaves the others in torchrun's exit barrier.

        A node that cannot be told is lost: its log stream may stay silent for as long as its connection is thought
        alive.
        """
        left = [self._seats[name] for name in names]
        outcomes = fan_out(left, lambda seat: seat.node.engine.stop(seat.container, STOP_S), timeout_s=STOP_S + 30)
        lost = [NodeLost(node=o.item.node.name, node_rank=o.item.node_rank, error=o.error) for o in outcomes if o.error]
        for one in lost:
            self._heard.lost[one.node] = one.error.message
            self._heard.end(one)
        return lost
