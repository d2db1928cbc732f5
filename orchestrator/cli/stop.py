"""`orch stop`: end a run on all its nodes at once."""

from __future__ import annotations

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, RunToStopArgument, TimeoutToStopOption, YesOption
from orchestrator.cli.report import say, write_json
from orchestrator.specs.container import STOP_TIMEOUT_S
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK
from orchestrator.specs.run import State

EXAMPLES = """\
orch stop
orch stop RUN --timeout 120
orch stop RUN --timeout 0
"""


def stop(
    run: RunToStopArgument = None,
    timeout: TimeoutToStopOption = STOP_TIMEOUT_S,
    as_json: JsonOption = False,
    yes: YesOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Stop a run: send SIGTERM to all ranks, wait for a last checkpoint, save the logs, remove the containers.

    Ranks that are still running after --timeout are killed. Another user's run is stopped only after confirmation, or
    with --yes. To continue later: orch resume RUN
    """
    from orchestrator.cli.launching.stopping import at_hand, recorded_end, stop_everywhere
    from orchestrator.store.run_names import OnlyOnRecordError

    try:
        with at_hand(load_inventory(inventory).inventory.holders, run) as wanted:
            if not wanted.agreed("Stop it?", yes=yes):
                say("nothing was stopped")
                return EXIT_INTERRUPTED
            stopped = stop_everywhere(wanted, timeout_s=timeout)
    except OnlyOnRecordError as error:
        if not (found := recorded_end(error.run_id)):
            raise
        stopped = found
    step = stopped.checkpoint_step
    if as_json:
        write_json({"run_id": stopped.run_id, "stopped": list(stopped.nodes), "checkpoint_step": step})
    stopped.require_all()
    if stopped.ended:
        removed = f"; its containers on {', '.join(stopped.nodes)} are removed" if stopped.nodes else ""
        say(f"run {stopped.run_id} had ended before: {stopped.ended}, {stopped.checkpoint_text}{removed}")
    else:
        say(f"✓ run {stopped.run_id} stopped, {stopped.checkpoint_text}")
    if step is not None and stopped.ended != State.SUCCEEDED:
        say(f"  → orch resume {stopped.run_id}")
    return EXIT_OK
