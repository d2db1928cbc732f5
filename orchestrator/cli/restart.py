"""`orch restart`: stop a run with a checkpoint and resume it."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunToStopArgument, TimeoutToStopOption
from orchestrator.cli.report import say
from orchestrator.specs.container import STOP_TIMEOUT_S
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError
from orchestrator.specs.launch_options import LaunchOptions

EXAMPLES = """\
orch restart
orch restart RUN --nodes alpha,beta --detach
"""


@expand(only=("nodes", "engine", "as_json", "detach", "no_supervise", "confirmed", "inventory"))
def restart(
    options: LaunchOptions,
    mode: OutputMode,
    run: RunToStopArgument = None,
    timeout: TimeoutToStopOption = STOP_TIMEOUT_S,
) -> int:
    """Stop a run like `orch stop`, then resume it like `orch resume`.

    Checks, plan and confirmation come first, while the run is active: if anything is refused, the run continues. If a
    node cannot be stopped, nothing is started.
    """
    from orchestrator.cli.launching.grants import agree_to_hooks
    from orchestrator.cli.launching.launch import launch, planned
    from orchestrator.cli.launching.order import LaunchOrder
    from orchestrator.cli.launching.stopping import at_hand, stop_everywhere

    require_consent(yes=mode.confirmed)
    loaded = load_inventory(mode.inventory)
    mode = replace(mode, inventory=loaded.path.absolute())
    agree_to_hooks(loaded.inventory.hooks, mode)
    with at_hand(loaded.inventory.holders, run) as running:
        options = replace(options, resume=running.run.run_id)
        by = f", launched by {running.stranger}," if running.stranger else ""
        question = f"Stop run {running.run.run_id}{by} and resume it as shown?"
        with planned(LaunchOrder(inventory=loaded.inventory, options=options, mode=mode, ending=True)) as ready:
            if not mode.confirmed:
                ready.show(asking=True)
            confirmed = agreed(question, yes=mode.confirmed, default=True, ends=True)
        if not confirmed:
            say(f"nothing was stopped: run {running.run.run_id} is as it was")
            return EXIT_INTERRUPTED
        stopped = stop_everywhere(running, timeout_s=timeout)
    stopped.require_all()
    was = f"had ended before: {stopped.ended}" if stopped.ended else "stopped"
    say(f"✓ run {stopped.run_id} {was}, {stopped.checkpoint_text}")
    try:
        return launch(replace(ready.order, ending=False).confirmed())
    except OrchError:
        say(f"run {stopped.run_id} is stopped ({stopped.checkpoint_text}) and was not started again")
        say(f"  → orch resume {stopped.run_id}")
        raise
