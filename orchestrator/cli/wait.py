"""`orch wait`: until a run has ended."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, RunArgument
from orchestrator.cli.report import say, write_json
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, RunFailedError

EXAMPLES = """\
orch wait
orch wait RUN --timeout 3600 && orch logs RUN --tail 5
orch wait RUN --notify 'notify-send "orch: $ORCH_RUN $ORCH_STATE" "$ORCH_REASON"'
"""


def wait(
    run: RunArgument = None,
    timeout: float | None = typer.Option(None, min=0, metavar="SECONDS", help="Longest time to wait."),
    notify: str = typer.Option(
        "",
        "--notify",
        metavar="CMD",
        help="Command for /bin/sh when the run has ended; see ORCH_RUN, ORCH_STATE, ORCH_REASON.",
    ),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Wait until a run has ended.

    --notify runs a command on this computer, with the run's id, state and reason in its environment; its failure does
    not change the exit code. `hooks:` of the inventory do the same for every run that is followed or supervised.

    Exit code 0: succeeded or stopped; 1: failed, or its end was not seen; 7: --timeout passed first. Ctrl-C stops
    waiting; the run continues.
    """
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.read_logs import resolve_logs
    from orchestrator.fleet.supervise.wait import wait_for

    with connected_for(load_inventory(inventory).inventory.holders, run) as nodes:
        run_id = resolve_logs(nodes, run).run_id
        try:
            state = wait_for(nodes, run_id, timeout_s=timeout)
        except KeyboardInterrupt:
            say(f"\nrun {run_id} continues\n  → orch stop {run_id}")
            return EXIT_INTERRUPTED
    if notify:
        from orchestrator.cli.launching.following import tell_hooks
        from orchestrator.fleet.supervise.hooks import run_hook
        from orchestrator.store.run_record import RunRecord

        reason = (RunRecord(run_id).outcome() or ("", ""))[1]
        variables = {"EVENT": "ended", "RUN": run_id, "STATE": state, "REASON": reason}
        tell_hooks([run_hook("--notify", notify, variables, Path())])
    if as_json:
        write_json({"run_id": run_id, "state": state})
    else:
        say(f"run {run_id} {state}")
    return EXIT_OK if state in ("succeeded", "stopped") else RunFailedError.exit_code
