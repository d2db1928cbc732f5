"""`orch checkpoints prune`: remove older checkpoints from all nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.checkpoints.asked import asked_nodes, number
from orchestrator.cli.consent import agreed
from orchestrator.cli.options import InventoryOption, JsonOption, YesOption
from orchestrator.cli.report import report_error, say, write_json
from orchestrator.specs.errors import EXIT_OK, PartialError, RunFailedError


def prune(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run id, or its first characters.")],
    keep: Annotated[int, typer.Option("--keep", min=1, metavar="N", help="Number of newest steps to keep.")],
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, metavar="HOURS", help="Remove only checkpoints older than this.")
    ] = 0.0,
    yes: YesOption = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Remove a run's older checkpoints from all its nodes. Shows them and asks first.

    The newest intact checkpoint and the one with the best evaluation (best.json) are always kept.
    """
    from orchestrator.fleet.checkpoints.copy import remove_all
    from orchestrator.fleet.checkpoints.survey import newest_sound
    from orchestrator.plan.checkpoints import HOUR_S, Keeping, copies, to_prune
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_table, in_order
    from orchestrator.render.console import stderr

    with asked_nodes(inventory, run) as asked:
        chosen, held = asked.of(run)
        say("verifying the newest checkpoint before any other is removed")
        sound = newest_sound(asked.nodes, held)
        if not sound:
            raise RunFailedError(f"no intact checkpoint of run {chosen}: nothing was removed",
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        keeping = Keeping(newest=keep, younger_than_s=older_than * HOUR_S)
        doomed = in_order(to_prune(held, keeping, sound[0].step))
        if doomed:
            stderr().print(checkpoint_table(doomed, copies(held)))
        going = doomed if doomed and agreed(f"Remove {number(doomed)}?", yes=yes) else []
        outcomes = remove_all(asked.nodes, going)
    failed = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    gone = [one for one in going if one.node not in failed]
    for error in failed.values():
        report_error(error)
    if as_json:
        write_json({"run_id": chosen, "removed": [checkpoint_data(one, {}) for one in gone]})
    if failed:
        raise PartialError(f"{', '.join(failed)}: checkpoints could not be removed there")
    say(f"✓ {number(gone)} removed, {sum(one.size for one in gone) / 1e6:.1f} MB" if gone else "nothing was removed")
    return EXIT_OK
