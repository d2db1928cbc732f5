"""Supervise a run: attempt after attempt, with the nodes that answer, until it ends or cannot continue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from dataclasses import dataclass, field, replace

from contract.events import CheckpointWritten
from orchestrator.checks.failure import Failure
from orchestrator.fleet.fan_out import begin
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.claims import NodesClaimed
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.stop import stop_containers
from orchestrator.fleet.supervise.attempt import AbsentNode, AttemptOptions, Callbacks, follow_attempt
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.log_reader import Pause
from orchestrator.fleet.supervise.replan import NodePool, claim_next, require_fit, start_next_attempt, undo_claim
from orchestrator.specs.container import STOP_TIMEOUT_S
from orchestrator.specs.errors import OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import Replanned, RunLine
from orchestrator.specs.seen import seen_now
from orchestrator.state.journal_entries import Why
from orchestrator.state.phase import Phase
from orchestrator.state.recovery import Policy, Replan, Update
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord

TRIES, FIRST_PAUSE_S = 4, 5.0
"""Tries to start the next attempt: more may fail meanwhile."""
WAITING_STOP_S = 10
"""Ranks that wait for a lost node have nothing to save."""
LONGEST_S = 3600.0
COPY_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """Options of the supervision of a run."""

    pool: NodePool
    callbacks: Callbacks = field(default_factory=Callbacks)
    no_answer_s: float | None = None
    """Seconds without an answer of any node until following ends (default: the plan's node timeout)."""
    clock: Callable[[], float] = seen_now
    pause: Pause | None = None
    rest: Callable[[float], object] = time.sleep
    """Waits between two tries to start the next attempt."""
    tick_s: float = 0.5
    followed: FollowedRun | None = None
    """State of the run, kept up to date for others; None: nothing else reads it."""


class LatestOnly:
    """Background work, one piece at a time: a newer piece replaces the one that waits."""

    def __init__(self, failed: Callable[[OrchError], object] = lambda _error: None) -> None:
        """`failed` receives errors, in the calling thread."""
        self._failed = failed
        self._current: Future[object] | None = None
        self._waiting: Callable[[], object] | None = None

    def add(self, work: Callable[[], object]) -> None:
        self._waiting = work
        self.look()

    def look(self) -> None:
        """Start the waiting piece of work, if none is running."""
        if self._current and self._current.done():
            self._finish()
        if self._waiting and not self._current:
            self._current, self._waiting = begin(self._waiting), None

    def finish(self, timeout_s: float) -> None:
        """Wait for both pieces, each at most `timeout_s`. TimeoutError: one takes longer."""
        while self._current or self._waiting:
            self.look()
            if self._current:
                self._current.exception(timeout_s)
                self._finish()

    def _finish(self) -> None:
        ended, self._current = self._current, None
        error = ended.exception() if ended else None
        if isinstance(error, Exception):
            self._failed(as_error(error))
        elif error:
            raise error


def supervise(how: Supervision, plan: Plan, containers: Sequence[RunningContainer]) -> RunOutcome:
    """Supervise until the run ends. With `plan.min_nodes` it continues without absent nodes, and adds them later."""
    followed = how.followed or FollowedRun(RunRecord(plan.run_id), how.clock)
    record, copies, given_up = followed.record, LatestOnly(how.callbacks.failed), Counter[str](plan.away)
    if interrupted := record.next():  # an earlier supervisor ended between two attempts
        plan, containers = move(how, plan, NodesClaimed(claim=interrupted.claim))
    while True:
        outcome = follow_attempt(
            containers,
            plan,
            followed,
            on=_pass_on(how, plan, followed.state, copies),
            options=_attempt_options(how, plan, given_up),
        )
        if outcome.then is None:
            with suppress(TookTooLong):
                copies.finish(COPY_S)
            return outcome
        if isinstance(outcome.then, Replan):
            given_up.update(outcome.then.without)
            names, patience_s = outcome.then.left, WAITING_STOP_S
        else:
            names, patience_s = (*(part.node for part in plan.nodes), *outcome.then.nodes), STOP_TIMEOUT_S
        why: Why = "replan" if isinstance(outcome.then, Replan) else "add_nodes"
        claimed = claim_next(how.pool, plan, names, why, outcome.state.samples_per_step)
        stop_containers([one for one in containers if one.node.name in names], record, timeout_s=patience_s)
        try:
            plan, containers = move(how, plan, claimed)
        except OrchError as error:
            failure = Failure(node=error.node or plan.master, rank=0, exit_code=None, reason=str(error), lines=())
            record.save_outcome(Phase.FAILED.value, failure.reason)
            return replace(outcome, phase=Phase.FAILED, failure=failure, then=None)


def move(how: Supervision, plan: Plan, claimed: NodesClaimed) -> tuple[Plan, tuple[RunningContainer, ...]]:
    """Start the attempt that was claimed; retry where something else fails meanwhile. Raises the last error, and then
    the claim is undone."""
    for number in range(TRIES):
        try:
            next_plan, containers = start_next_attempt(how.pool, plan, claimed, how.callbacks.notify)
        except OrchError as error:
            if number == TRIES - 1:
                undo_claim(how.pool, plan, claimed.claim, str(error))
                raise
            how.callbacks.failed(error)
            how.rest(FIRST_PAUSE_S * 2**number)
            claimed = NodesClaimed(claim=claimed.claim)  # all are asked: a node may be back
            continue
        how.callbacks.update(Replanned(plan=next_plan))
        return next_plan, containers
    raise AssertionError  # the last try returns or raises


def _attempt_options(how: Supervision, plan: Plan, given_up: Mapping[str, int]) -> AttemptOptions:
    """A node that is given up repeatedly waits longer each time: the other nodes may not reach it."""

    def ready(name: str) -> Callable[[], object]:
        return lambda: require_fit(how.pool, name, plan.run_id)

    policy = Policy(
        max_restarts=plan.max_restarts,
        node_timeout_s=float(plan.node_timeout_s),
        min_nodes=plan.min_nodes,
        no_answer_s=float(plan.node_timeout_s if how.no_answer_s is None else how.no_answer_s),
    )
    away = tuple(
        AbsentNode(
            node=how.pool.nodes[name],
            ready=ready(name),
            after_s=min(LONGEST_S, policy.node_timeout_s * (2 ** max(0, given_up[name] - 1) - 1)),
        )
        for name in plan.away
        if name in how.pool.nodes
    )
    return AttemptOptions(policy=policy, away=away, pause=how.pause, tick_s=how.tick_s)


def _pass_on(how: Supervision, plan: Plan, state: RunState, copies: LatestOnly) -> Callable[[Update], None]:
    """Pass updates to the callbacks; copy checkpoints of the leading rank in the background."""
    nodes, copied = [how.pool.nodes[part.node] for part in plan.nodes], _newest_checkpoint(state)

    def pass_on(update: Update) -> None:
        nonlocal copied
        how.callbacks.update(update)
        copies.look()
        checkpoint = how.callbacks.checkpoint
        if not checkpoint or not isinstance(update, RunLine) or update.event is None:
            return
        if (newest := _newest_checkpoint(state)) and newest is not copied:
            copied, step = newest, newest.step or 0
            copies.add(lambda: checkpoint(nodes, plan, step))

    return pass_on


def _newest_checkpoint(state: RunState) -> CheckpointWritten | None:
    return state.leader.part.checkpoint if state.leader else None
