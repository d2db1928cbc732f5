"""See a run through: attempt after attempt, with the nodes that are there, until it ends or nothing can be done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from dataclasses import dataclass, field, replace

from contract.events import CheckpointWritten, GroupJoined
from orchestrator.checks.failure import Failure
from orchestrator.fleet.checkpoints.copy import Notify
from orchestrator.fleet.runs.launch import RunningContainer
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.supervise.attempt import Away, Patience, attend
from orchestrator.fleet.supervise.attempt_state import RunOutcome
from orchestrator.fleet.supervise.follow import Pause
from orchestrator.fleet.supervise.latest_only import InTurn
from orchestrator.fleet.supervise.replan import Company, go_on, must_be_fit, stop_here
from orchestrator.nodes.interface import Node
from orchestrator.plan.command import STOP_TIMEOUT_S
from orchestrator.plan.recovery import PlanAnew, Policy, TakeIn, Told
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import State
from orchestrator.specs.run_events import Replanned, RunLine

TRIES, FIRST_PAUSE_S = 4, 5.0
"""Of planning anew: what has just broken may not be all."""
WAITING_STOP_S = 10
"""Ranks that wait for a lost node have nothing to save."""
LONGEST_S = 3600.0
COPY_S = 600.0

Checkpointed = Callable[[Sequence[Node], Plan, int], object]
"""Is told (nodes of the attempt, its plan, step) of each checkpoint that was verified, beside the following."""


@dataclass(frozen=True, kw_only=True)
class Ears:
    """Who is told of what."""

    told: Callable[[Told], None] = lambda _told: None
    checkpoint: Checkpointed | None = None
    failed: Callable[[OrchError], object] = lambda _error: None
    """Of what `checkpoint` could not do: the run goes on."""
    notify: Notify = lambda _node, _progress: None
    """Of what is brought to a node before the run goes on there."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a run is watched."""

    company: Company
    ears: Ears = field(default_factory=Ears)
    out_of_sight_s: float | None = None
    """Seconds without an answer of any node until following ends (default: the plan's node timeout)."""
    clock: Callable[[], float] = time.monotonic
    pause: Pause | None = None
    rest: Callable[[float], object] = time.sleep
    """Between two tries to plan anew."""
    tick_s: float = 0.5


def watch(how: Watch, plan: Plan, seated: Sequence[RunningContainer]) -> RunOutcome:
    """Until the run ends. With `plan.min_nodes` it goes on without nodes given up, and with them when they are back."""
    record, copies, given_up = RunRecord(plan.run_id), InTurn(how.ears.failed), Counter[str](plan.away)
    if names := record.next():  # an earlier watcher was cut short between two attempts
        plan, seated = move(how, plan, names, samples_said(record))
    while True:
        outcome = attend(
            seated,
            plan,
            record,
            on=_passing_on(how, plan, copies),
            clock=how.clock,
            patience=_patience(how, plan, given_up),
        )
        if outcome.then is None:
            with suppress(TookTooLong):
                copies.finish(COPY_S)
            return outcome
        if isinstance(outcome.then, PlanAnew):
            given_up.update(outcome.then.without)
        names = _next(plan, outcome.then)
        record.mark_next(names)
        patience_s = STOP_TIMEOUT_S if isinstance(outcome.then, TakeIn) else WAITING_STOP_S
        stop_here([seat for seat in seated if seat.node.name in names], record, timeout_s=patience_s)
        try:
            plan, seated = move(how, plan, names, outcome.samples_per_step)
        except OrchError as error:
            return _stranded(outcome, plan, record, error)


def move(
    how: Watch, plan: Plan, names: Sequence[str], samples_per_step: int | None
) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """The next attempt on these nodes, tried again where something else breaks meanwhile. Raises the last error."""
    for number in range(TRIES):
        try:
            anew, seated = go_on(how.company, plan, names, samples_per_step, how.ears.notify)
        except OrchError as error:
            if number == TRIES - 1:
                raise
            how.ears.failed(error)
            how.rest(FIRST_PAUSE_S * 2**number)
            continue
        how.ears.told(Replanned(plan=anew))
        return anew, seated
    raise AssertionError  # the last try returns or raises


def samples_said(record: RunRecord) -> int | None:
    """Samples of a step, as a rank told them last."""
    samples = None
    for said in record.lines():
        if isinstance(said.event, GroupJoined):
            samples = said.event.samples_per_step
    return samples


def _next(plan: Plan, then: PlanAnew | TakeIn) -> tuple[str, ...]:
    """The nodes to go on with."""
    return (*(part.node for part in plan.nodes), *then.nodes) if isinstance(then, TakeIn) else then.left


def _patience(how: Watch, plan: Plan, given_up: Mapping[str, int]) -> Patience:
    """A node that was given up again after it had come back has to wait longer each time: the watcher reaches it, and
    the other nodes may not."""

    def ready(name: str) -> Callable[[], object]:
        return lambda: must_be_fit(how.company, name, plan.run_id)

    policy = Policy(
        max_restarts=plan.max_restarts,
        node_timeout_s=float(plan.node_timeout_s),
        enough=plan.min_nodes,
        out_of_sight_s=float(plan.node_timeout_s if how.out_of_sight_s is None else how.out_of_sight_s),
    )
    away = tuple(
        Away(
            node=how.company.nodes[name],
            ready=ready(name),
            after_s=min(LONGEST_S, policy.node_timeout_s * (2 ** max(0, given_up[name] - 1) - 1)),
        )
        for name in plan.away
        if name in how.company.nodes
    )
    return Patience(policy=policy, away=away, pause=how.pause, tick_s=how.tick_s)


def _passing_on(how: Watch, plan: Plan, copies: InTurn) -> Callable[[Told], None]:
    """What is told goes to the ears; a checkpoint is copied beside it."""
    nodes = [how.company.nodes[part.node] for part in plan.nodes]

    def tell(told: Told) -> None:
        how.ears.told(told)
        copies.look()
        event = told.event if isinstance(told, RunLine) else None
        checkpoint = how.ears.checkpoint
        if checkpoint and isinstance(event, CheckpointWritten) and event.verified:
            step = event.step or 0
            copies.add(lambda: checkpoint(nodes, plan, step))

    return tell


def _stranded(outcome: RunOutcome, plan: Plan, record: RunRecord, error: OrchError) -> RunOutcome:
    """It was stopped to go on otherwise, and could not."""
    failure = Failure(node=error.node or plan.master, rank=0, exit_code=None, reason=str(error), lines=())
    record.save_outcome(State.FAILED.value, failure.reason)
    return replace(outcome, state=State.FAILED, failure=failure, then=None)
