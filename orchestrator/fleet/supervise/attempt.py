"""Follow an attempt of a run until it ends or the next one is due: restart, report or stop what fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from orchestrator.fleet.fan_out import Notify, fan_out
from orchestrator.fleet.runs.code_files import is_folder
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.secrets import remove_secrets
from orchestrator.fleet.supervise.follow import Follower
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.log_reader import Pause
from orchestrator.nodes.carrier import CarriedAttempt
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, NodeBack, NodeLost, RunEvent, Tick
from orchestrator.state.recovery import (
    LAST,
    Decision,
    DisableRestart,
    End,
    GiveUp,
    Policy,
    StartContainer,
    StopOthers,
    Supervising,
    Update,
    decide,
    matters,
)
from orchestrator.state.run_outcome import RunOutcome, outcome_of
from orchestrator.store.secret_values import veil_of

STOP_S = 4
START_S = 30.0
LOOK_EVERY_S = 0.25
"""Seconds between two looks at a run of which only lines come."""


Checkpointed = Callable[[Sequence[Node], Plan, int], object]
"""Called with (nodes of the attempt, its plan, step) for each verified checkpoint, in the background."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Called while a run is followed."""

    update: Callable[[Update], None] = lambda _update: None
    """Receives every event and decision. An exception that it raises ends the following."""
    checkpoint: Checkpointed | None = None
    failed: Callable[[OrchError], object] = lambda _error: None
    """Receives errors that do not end the run, and of a temporary run those of nodes that could not be cleaned up."""
    notify: Notify = lambda _node, _progress: None
    """Receives each step on a node, and the progress of copies to it."""
    waiting: Callable[[CarriedAttempt], None] = lambda _attempt: None
    """Receives an attempt of a job whenever its place in the queue has changed, and once it has left it."""


@dataclass(frozen=True, kw_only=True)
class AbsentNode:
    """A node that takes no part in the attempt, and may return."""

    node: Node
    ready: Callable[[], object]
    """Raises an `OrchError` as long as the node is not fit."""
    after_s: float = 0.0
    """Seconds until it is asked for the first time."""


@dataclass(frozen=True, kw_only=True)
class AttemptOptions:
    """Options of following an attempt. By default the first lost node ends it."""

    policy: Policy = field(default_factory=Policy)
    away: Sequence[AbsentNode] = ()
    pause: Pause | None = None
    """Waits between two tries to reach a node."""
    tick_s: float = 0.5


def follow_attempt(
    containers: Sequence[RunningContainer],
    plan: Plan,
    followed: FollowedRun,
    *,
    on: Callable[[Update], None] = lambda _update: None,
    options: AttemptOptions | None = None,
) -> RunOutcome:
    """Follow until all containers have ended. `on` receives every event and every decision, after `followed`.

    The first final failure stops the other nodes: a rank without its peers hangs for 300 s.
    """
    options, record = options or AttemptOptions(), followed.record
    followed.begin(plan, containers)
    record.veil = veil_of(plan)  # the plan on record lacks secret values
    patient = options.policy.node_timeout_s > 0
    made = Follower(record, record.recorder(), tick_s=options.tick_s, patient=patient, pause=options.pause)
    with closing(made) as follower:  # Ctrl-C may come before its first event
        driver = AttemptDriver(containers, plan, followed, follower)
        for container in containers:
            follower.add(container)
        for one in options.away:
            follower.look_out(one.node, one.ready, after_s=one.after_s)
        done, looked_at = Supervising(), float("-inf")
        for run_event in follower.run_events():
            followed.take(run_event)
            on(run_event)
            driver.note(run_event)
            now = followed.now() if isinstance(run_event, Tick) else followed.state.as_of  # when the event was read
            if not matters(run_event) and now - looked_at < LOOK_EVERY_S:
                continue  # a rank may write thousands of lines a second, and a run have a thousand nodes
            looked_at, todo = now, [run_event]
            while todo:
                done, decisions = decide(followed.state, done, options.policy, todo.pop(0), now)
                for decision in decisions:
                    on(decision)
                    if isinstance(decision, LAST):
                        follower.close()
                        return driver.leave(decision)
                    todo += driver.execute(decision)
        return driver.leave(End())


class AttemptDriver:
    """Executes decisions on the nodes."""

    def __init__(
        self, containers: Sequence[RunningContainer], plan: Plan, followed: FollowedRun, follower: Follower
    ) -> None:
        self._containers = {one.node.name: one for one in containers}
        self._plan, self._followed, self._follower = plan, followed, follower
        self._ended: list[str] = []
        """Nodes that have ended, or could not be stopped, in this order."""

    def note(self, run_event: RunEvent) -> None:
        if isinstance(run_event, ContainerExited):
            self._end(run_event.node)
        elif isinstance(run_event, NodeBack) and run_event.container:
            self._containers[run_event.node] = replace(self._containers[run_event.node], id=run_event.container)
            self._followed.note_running(run_event.node, run_event.container)

    def execute(self, decision: Decision) -> list[RunEvent]:
        """Execute a decision; return the events that follow."""
        if isinstance(decision, StartContainer):
            container = self._containers[decision.node]
            # an error is found by its follower
            fan_out([container], lambda one: one.node.engine.start(one.id), timeout_s=START_S)
            self._followed.note_running(decision.node, container.id)
            self._follower.add(container, since=self._followed.record.last_time(decision.node, container.id))
        if isinstance(decision, DisableRestart):
            ending = [self._containers[name] for name in decision.nodes]
            # where an engine does not answer, it starts a container a few times more, which ends at once
            fan_out(ending, lambda one: one.node.engine.disable_restart(one.id), timeout_s=STOP_S)
        if isinstance(decision, StopOthers):
            return [*self._stop(decision.nodes)]
        return []

    def leave(self, decision: Decision) -> RunOutcome:
        """End the following; stop a run that is given up on all nodes that answer."""
        if isinstance(decision, GiveUp):
            self._stop(self._answering())
        outcome = outcome_of(self._followed.state, self._plan, decision, self._ended, is_folder)
        if outcome.then is None:
            here = [self._containers[name] for name in self._answering()]
            fan_out(here, lambda one: remove_secrets(one.node, one.secrets), timeout_s=STOP_S)
            with suppress(OSError):  # a full disk was reported when the lines did not fit
                record, failure = self._followed.record, outcome.failure
                record.save_outcome(outcome.phase.value, failure.reason if failure else "")
        return outcome

    def _answering(self) -> list[str]:
        silent = {name for name, node in self._followed.state.nodes.items() if node.silent_since is not None}
        return [name for name in self._containers if name not in silent]

    def _end(self, name: str) -> None:
        self._ended = [*(one for one in self._ended if one != name), name]  # the end of an earlier start does not count

    def _stop(self, names: Sequence[str]) -> list[NodeLost]:
        """Stop all at once: one node stopped alone leaves the others in torchrun's exit barrier.

        A node that cannot be reached is lost: its log stream may stay silent as long as its connection seems alive.
        """
        left = [self._containers[name] for name in names]
        outcomes = fan_out(left, lambda one: one.node.engine.stop(one.id, STOP_S), timeout_s=STOP_S + 30)
        lost = [NodeLost(node=o.item.node.name, node_rank=o.item.node_rank, error=o.error) for o in outcomes if o.error]
        for one in lost:
            self._followed.take(one)
            self._end(one.node)
        return lost
