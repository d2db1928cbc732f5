"""`orch supervise`: follow a run and fix what breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunArgument
from orchestrator.specs.errors import PartialError

A_DAY_S = 24 * 3600

EXAMPLES = """\
orch supervise
orch supervise RUN --json
"""


def register(app: typer.Typer) -> None:
    app.command("supervise", epilog=EXAMPLES)(watch)


@expand(only=("as_json", "inventory", "engine"))
def watch(
    mode: OutputMode,
    run: RunArgument = None,
    out_of_sight: Annotated[
        int, typer.Option("--out-of-sight", min=1, metavar="S", help="Seconds without any node before it gives up.")
    ] = A_DAY_S,
) -> int:
    """Follow a run until it ends: containers that were killed are restarted, lost nodes are given up.

    Prints each action, not the ranks' own lines (orch logs -f). `orch launch --detach` starts a supervisor in the
    background. It may be killed and restarted at any time; at most one per computer supervises a run.
    """
    from orchestrator.cli.launching.supervise import rejoined, see_through, tell_line
    from orchestrator.fleet.runs.records import RunRecord

    loaded = load_inventory(mode.inventory)
    mode = replace(mode, confirmed=True, no_watch=True)  # Ctrl-C ends this watcher and starts no other in its place
    told = (lambda _told: None) if mode.as_json else tell_line
    with rejoined(loaded.inventory, run, mode.engine, told, ask=not mode.as_json) as attended:
        plan = attended.plan
        if RunRecord(plan.run_id).was_stopped(plan.attempt):
            raise PartialError(
                f"run {plan.run_id} was stopped while a node was away: its remaining containers are not supervised",
                hint=f"end it: orch stop {plan.run_id}",
            )
        return see_through(replace(attended, looks=1), mode, no_answer_s=float(out_of_sight))
