"""`orch restart`: stop a run with a checkpoint and resume it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.cli.consent import require_consent
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunToStopArgument, TimeoutToStopOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError
from orchestrator.specs.launch_options import LaunchOptions

if TYPE_CHECKING:
    from orchestrator.cli.launching.stopping import AtHand
    from orchestrator.specs.inventory import Inventory
    from orchestrator.specs.plan import Plan

EXAMPLES = """\
orch restart
orch restart RUN --nodes alpha,beta --detach
"""


@expand(only=("nodes", "engine", "as_json", "detach", "no_watch", "confirmed", "inventory"))
def restart(
    options: LaunchOptions,
    mode: OutputMode,
    run: RunToStopArgument = None,
    timeout: TimeoutToStopOption = 75,
) -> int:
    """Stop a run like `orch stop`, then resume it like `orch resume`.

    Checks, plan and confirmation come first, while the run is active: if anything is refused, the run continues. If a
    node cannot be stopped, nothing is started.
    """
    from orchestrator.cli.launching.run_launch import earlier_plan, run_launch
    from orchestrator.cli.launching.stopping import at_hand, stop_everywhere, tell_stopped

    require_consent(yes=mode.confirmed)
    loaded = load_inventory(mode.inventory)
    mode = replace(mode, inventory=loaded.path.absolute())
    with at_hand(loaded.inventory.nodes, run) as running:
        options = replace(options, resume=running.run.run_id)
        earlier = earlier_plan(loaded.inventory, options, mode)
        if not _foreseen(loaded.inventory, options, mode, running, earlier):
            say(f"nothing was stopped: run {running.run.run_id} is as it was")
            return EXIT_INTERRUPTED
        stopped = stop_everywhere(running, timeout_s=timeout)
    stopped.require_all()
    tell_stopped(stopped)
    try:
        return run_launch(loaded.inventory, options, replace(mode, confirmed=True), earlier=earlier)
    except OrchError:
        say(
            f"run {stopped.run_id} is stopped ({stopped.kept}) and was not started again\n"
            f"  → orch resume {stopped.run_id}"
        )
        raise


def _foreseen(
    inventory: Inventory, options: LaunchOptions, mode: OutputMode, running: AtHand, earlier: Plan | None
) -> bool:
    """Whether the next attempt can be planned, all nodes pass its checks, and the user agrees to the plan."""
    from orchestrator.cli.launching.run_launch import ready
    from orchestrator.cli.launching.view import confirm

    with ready(inventory, options, mode, earlier, ending=True) as (_, _, plan, _):
        of = f", launched by {running.stranger}," if running.stranger else ""
        return mode.confirmed or confirm(plan, f"Stop run {plan.run_id}{of} and start it again so?")
