"""`orch checkpoints ls` and `verify`: which there are, and whether they are sound."""

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
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; all runs otherwise.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file; else sizes decide.")] = False,
    output: OutputOption = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """List checkpoints: run, step, size, age, on which nodes, and on how many a sound copy lies.

    `complete`: its manifest is there and every file has the size that it says. `sound`: the hashes are right too.
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
    """Hash every file of a run's checkpoints, on the nodes that hold them, and compare it with its manifest.

    Exit code 1: some copy is damaged; 5: some nodes did not answer.
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
            hint="a resumed run passes them over; a new copy of the newest is made at its next checkpoint",
        )
    if asked.unreachable:
        raise PartialError(f"{', '.join(asked.unreachable)} did not answer: what lies there was not looked at")
    say(f"✓ run {chosen}: {len(looked)} checkpoint{'' if len(looked) == 1 else 's'}, every file as it was written")
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
