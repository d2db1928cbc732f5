"""A temporary run on a cluster: submit it, show its place in the queue, follow it, and remove it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import typer

from orchestrator.cli.launching.cluster_launch import ready_on, tell_queue
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import progress_view, report_error, say
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.fleet.supervise.one_shot import OneShotCallbacks, OneShotResult, run_one_shot_job
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from orchestrator.state.recovery import Update
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord


def run_once_on(
    inventory: Inventory,
    options: LaunchOptions,
    shape: Callable[[LaunchRequest], LaunchRequest],
    hearing: Callable[[Plan, RunState], AbstractContextManager[Callable[[Update], None]]],
    *,
    prog: str,
    wait_s: float,
    quiet: bool,
) -> tuple[Plan, OneShotResult]:
    """Run this on the cluster `options.on`, and return the plan with the nodes that its job got, and the result.

    `shape` makes the request that of a temporary run; `hearing` yields, for a plan and the state of its run, what
    receives its events. `prog`: the command, for messages. DeadlineError: the job has not started within `wait_s`.
    """
    mode, left = OutputMode(as_json=quiet, confirmed=True), list[OrchError]()

    def tell_left(error: OrchError) -> None:
        left.append(error)
        report_error(error)

    with ready_on(inventory, options, mode, shape=shape, prog=prog) as run:
        if run.code:
            say(f"code: {run.code}, copied to {run.carrier.name} once")
        followed = FollowedRun(RunRecord(run.plan.run_id))
        with hearing(run.plan, followed.state) as hear, progress_view(quiet=quiet, lines=True, notes=True) as view:
            callbacks = OneShotCallbacks(notify=view.notify, update=hear, left_behind=tell_left, silent=report_error)
            try:
                result = run_one_shot_job(
                    run,
                    callbacks,
                    waiting=lambda attempt: tell_queue(attempt, run.carrier),
                    wait_s=wait_s,
                    followed=followed,
                )
            except KeyboardInterrupt:
                say("\nstopped" if left else f"\nstopped; nothing of it is left on {run.carrier.name}")
                raise typer.Exit(EXIT_INTERRUPTED) from None
        return RunRecord(run.plan.run_id).plan() or run.plan, result
