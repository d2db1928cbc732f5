"""Wait until a run has ended, whether it is supervised or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.fleet.runs.find_runs import find_runs, run_on_nodes
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.supervise.one_supervisor import supervisor_of
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import DeadlineError
from orchestrator.specs.run import State

LOOK_EVERY_S = 2.0
STOPPED = 143
"""Exit code of a container that was asked to stop."""


def wait_for(
    nodes: Sequence[Node],
    run_id: str,
    *,
    timeout_s: float | None,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> str:
    """`succeeded`, `stopped` or `failed`. DeadlineError: it still runs after `timeout_s`.

    The result of a supervisor on this controller counts: between two attempts no container runs.
    """
    record, deadline = RunRecord(run_id), None if timeout_s is None else now() + timeout_s
    while True:
        if ended := record.outcome():
            return ended[0]
        if supervisor_of(record) is None and (word := _ended(nodes, run_id)):
            return word
        left = LOOK_EVERY_S if deadline is None else deadline - now()
        if left <= 0:
            raise DeadlineError(f"run {run_id} has not ended after {timeout_s:.0f} s", hint=f"orch status {run_id}")
        rest(min(LOOK_EVERY_S, left))


def _ended(nodes: Sequence[Node], run_id: str) -> str:
    """The outcome by the containers; empty while one runs, or may run on a node that does not answer."""
    found = find_runs(nodes)
    run = run_on_nodes(found, run_id)
    states = {member.state for member in run.members}
    if run.is_going or (State.LOST in states and found.unreachable):
        return ""
    codes = {member.container.exit_code for member in run.members if member.container}
    if STOPPED in codes and codes <= {0, STOPPED}:
        return "stopped"
    return State.SUCCEEDED.value if states == {State.SUCCEEDED} else State.FAILED.value
