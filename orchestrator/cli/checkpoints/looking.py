"""`orch checkpoints ls` and `verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.checkpoints.asked import RunArgument, StepOption, asked_nodes, hashed
from orchestrator.cli.options import InventoryOption, JsonOption, Output, OutputOption
from orchestrator.cli.report import say, write_json, write_names
from orchestrator.specs.errors import EXIT_OK, ConfigError, PartialError, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.specs.checkpoint import CheckpointCopy


def ls(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run id, or its first characters (default: all runs).")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash every file. Without it, only sizes are compared.")
    ] = False,
    output: OutputOption = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """List the checkpoints on all nodes: run, step, size, age and number of intact copies.

    States: `complete`: the manifest exists and every file has the size it lists. `sound`: the hashes match, too (with
    --verify). `damaged`: something is missing or differs. `best`: the checkpoint with the best evaluation.
    """
    from orchestrator.plan.checkpoints import run_meant
    from orchestrator.render.checkpoints import in_order

    with asked_nodes(inventory, run) as asked:
        chosen = run_meant(asked.held, run) if run else ""
        held = in_order([one for one in asked.held if one.run_id == chosen or not chosen])
        looked = hashed(asked.nodes, held, as_json=as_json) if verify else held
    _show(looked, output, as_json=as_json)
    if not looked and not as_json:
        say("no checkpoints yet\n  → orch launch")
    return RunFailedError.exit_code if verify and any(one.problem for one in looked) else EXIT_OK


def verify(
    run: RunArgument = None,
    step: StepOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Hash every file of a run's checkpoints on the nodes, and compare the hashes with the manifest.

    Exit code 1: a copy is damaged; 5: some nodes did not answer.
    """
    from orchestrator.render.checkpoints import in_order

    with asked_nodes(inventory, run) as asked:
        chosen, held = asked.of(run)
        wanted = in_order([one for one in held if step in (None, one.step)])
        if not wanted:
            raise ConfigError(f"no checkpoint of step {step} of run {chosen}", hint=f"orch checkpoints ls {chosen}")
        looked = hashed(asked.nodes, wanted, as_json=as_json)
    _show(looked, output, as_json=as_json)
    damaged = [one for one in looked if one.problem]
    if damaged:
        raise RunFailedError(
            f"{len(damaged)} of {len(looked)} checkpoints are damaged",
            hint="a resumed run skips them; the newest is copied again at the run's next checkpoint",
        )
    if asked.unreachable:
        raise PartialError(f"{', '.join(asked.unreachable)} did not answer: the checkpoints there were not verified")
    say(f"✓ run {chosen}: {len(looked)} checkpoint{'' if len(looked) == 1 else 's'}, every file matches its hash")
    return EXIT_OK


def _show(held: Sequence[CheckpointCopy], output: Output | None, *, as_json: bool) -> None:
    from orchestrator.plan.checkpoints import copies
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_table, damage
    from orchestrator.render.console import show

    counted = copies(held)
    if as_json:
        write_json({"checkpoints": [checkpoint_data(one, counted) for one in held]})
    elif output is Output.NAME:
        write_names(f"{one.node}:{one.folder}" for one in held)
    elif held:
        show(checkpoint_table(held, counted, wide=output is Output.WIDE))
    for words in damage(held):
        say(words)
