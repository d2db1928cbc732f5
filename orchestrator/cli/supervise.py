"""`orch supervise`: follow a run and fix what breaks."""

from __future__ import annotations

from dataclasses import replace

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunArgument
from orchestrator.specs.errors import PartialError

EXAMPLES = """\
orch supervise
orch supervise RUN --json
"""


@expand(only=("as_json", "inventory", "engine"))
def supervise(
    mode: OutputMode,
    run: RunArgument = None,
    out_of_sight: int = typer.Option(
        24 * 3600, min=1, metavar="SECONDS", help="Give up when no node has answered for this long."
    ),
) -> int:
    """Supervise a run until it ends: restart killed containers and continue without lost nodes.

    Prints each action, but not the output of the ranks (see `orch logs -f`). `orch launch --detach` starts a supervisor
    in the background. It can be killed and started again at any time; each computer has at most one per run.
    """
    from orchestrator.cli.launching.following import see_through
    from orchestrator.cli.launching.supervise import rejoined
    from orchestrator.store.run_record import RunRecord

    loaded = load_inventory(mode.inventory)
    mode = replace(mode, confirmed=True, no_supervise=True, inventory=loaded.path.absolute())
    # Ctrl-C ends this supervisor and starts no other in its place
    with rejoined(loaded.inventory, run, mode, looks=1, no_answer_s=float(out_of_sight)) as attended:
        plan = attended.plan
        if RunRecord(plan.run_id).was_stopped(plan.attempt):
            raise PartialError(
                f"run {plan.run_id} was stopped while a node was away: its remaining containers are not supervised",
                hint=f"end it: orch stop {plan.run_id}",
            )
        return see_through(attended, mode)
