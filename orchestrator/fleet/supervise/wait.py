"""Wait until a run has ended, whether it is supervised or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.fleet.runs.find_runs import find_runs, run_on_nodes
from orchestrator.fleet.runs.load_state import load_state
from orchestrator.fleet.runs.one_supervisor import supervisor_of
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import DeadlineError
from orchestrator.state.phase import Phase, phase_of
from orchestrator.store.run_record import RunRecord

LOOK_EVERY_S = 2.0


def wait_for(
    nodes: Sequence[Node],
    run_id: str,
    *,
    timeout_s: float | None,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> str:
    """The phase in which the run has ended: `succeeded`, `stopped`, `failed`; `unknown` where that was not seen; `lost`
    where this is on record and no node shows that it runs. DeadlineError: it still runs after `timeout_s`.

    The result of a supervisor on this controller counts: between two attempts no container runs.
    """
    record, deadline = RunRecord(run_id), None if timeout_s is None else now() + timeout_s
    while True:
        ended, was_lost = record.outcome(), record.journal.is_lost
        if ended and not was_lost:
            return ended[0]
        if supervisor_of(record) is None and (phase := _ended(nodes, run_id, was_lost=was_lost)):
            return phase.value
        left = LOOK_EVERY_S if deadline is None else deadline - now()
        if left <= 0:
            raise DeadlineError(f"run {run_id} has not ended after {timeout_s:.0f} s", hint=f"orch status {run_id}")
        rest(min(LOOK_EVERY_S, left))


def _ended(nodes: Sequence[Node], run_id: str, *, was_lost: bool) -> Phase | None:
    """The phase in which the run has ended; None while a container runs, or may run on a node that does not answer.
    `was_lost`: this is on record, and counts until a node shows that a container runs."""
    found = find_runs(nodes)
    if was_lost and all(one.run_id != run_id for one in found.runs):
        return Phase.LOST
    run = run_on_nodes(found, run_id)
    if run.is_going:
        return None
    state = load_state(run, found, {node.name: node for node in nodes}, time.time())
    phase = phase_of(state)
    may_run = phase is Phase.LOST and found.unreachable and not was_lost
    return None if phase.is_active or may_run else phase
