"""`orch checkpoints ls`, `verify` and `prune`, and the nodes' answers about their checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import run_ids
from orchestrator.cli.consent import agreed
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, Output, YesOption
from orchestrator.cli.report import report_errors, say, write_json
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, ConfigError, PartialError, PreflightError, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.nodes.interface import Node
    from orchestrator.specs.checkpoint import CheckpointCopy
    from orchestrator.specs.errors import OrchError
    from orchestrator.specs.inventory import Inventory

RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        autocompletion=run_ids,
        help="Run id, or its first characters (default: the run with the newest checkpoint).",
    ),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", min=0, metavar="N", help="Step of the checkpoint (default: the newest intact one)."),
]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The nodes' answers about their checkpoints."""

    inventory: Inventory
    nodes: Sequence[Node]
    places: Mapping[str, str]
    """The project's folder on each of them."""
    held: Sequence[CheckpointCopy]
    unreachable: Mapping[str, OrchError]

    def node(self, name: str) -> Node:
        """Return the node of this name. The node's error: it did not answer."""
        known = {node.name: node for node in self.nodes}
        if name in self.unreachable:
            raise self.unreachable[name]
        if name not in known:
            raise ConfigError(f"there is no node {name} in the inventory", hint=f"--to one of {', '.join(known)}")
        return known[name]

    def of(self, run: str | None) -> tuple[str, list[CheckpointCopy]]:
        """Return the id of the chosen run, and its checkpoints."""
        from orchestrator.fleet.checkpoints.survey import run_with_checkpoints

        chosen = run_with_checkpoints(self.held, run)
        return chosen, [one for one in self.held if one.run_id == chosen]


@contextmanager
def asked_nodes(inventory: Path | None, run: str | None) -> Iterator[Asked]:
    """Yield the answers of the nodes that hold this run, otherwise of all nodes of the inventory."""
    from orchestrator.fleet.checkpoints.survey import places_in, survey
    from orchestrator.fleet.connect import connected_for

    loaded = load_inventory(inventory).inventory
    places = places_in(loaded.holders, loaded.project)
    with connected_for(loaded.holders, run) as reached:
        nodes = [node for node in reached if node.name in places]
        found = survey(nodes, places, run or "")
        for error in found.unreachable.values():
            note(error)
        if nodes and len(found.unreachable) == len(nodes):
            raise PreflightError("none of the nodes answered", hint="orch doctor")
        yield Asked(inventory=loaded, nodes=nodes, places=places, held=found.held, unreachable=found.unreachable)


def note(error: OrchError) -> None:
    say(f"note: {error}")


def ls(
    *,
    run: str | None = typer.Argument(
        None, metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters (default: all runs)."
    ),
    verify: bool = typer.Option(False, "--verify", help="Hash every file. Without it, only sizes are compared."),
    output: Output,
    inventory: InventoryOption = None,
) -> int:
    """List the checkpoints on all nodes: run, step, size, age and number of intact copies.

    States: `complete`: the manifest exists and every file has the size it lists. `sound`: the hashes match, too (with
    --verify). `damaged`: something is missing or differs. `best`: the checkpoint with the best evaluation.
    """
    from orchestrator.fleet.checkpoints.survey import run_with_checkpoints
    from orchestrator.render.checkpoints import in_order

    with asked_nodes(inventory, run) as asked:
        chosen = run_with_checkpoints(asked.held, run) if run else ""
        held = in_order([one for one in asked.held if one.run_id == chosen or not chosen])
        looked = _hashed(asked.nodes, held, as_json=output.as_json) if verify else held
    _show(looked, output)
    if not looked and not output.as_json:
        say("no checkpoints yet\n  → orch launch")
    return RunFailedError.exit_code if verify and any(one.problem for one in looked) else EXIT_OK


def verify(
    *, run: RunArgument = None, step: StepOption = None, output: Output, inventory: InventoryOption = None
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
        looked = _hashed(asked.nodes, wanted, as_json=output.as_json)
    _show(looked, output)
    damaged = [one for one in looked if one.problem]
    if damaged:
        raise RunFailedError(
            f"{len(damaged)} of {len(looked)} checkpoints are damaged",
            hint="a resumed run skips them; the newest is copied again at the run's next checkpoint",
        )
    if asked.unreachable:
        raise PartialError(f"{', '.join(asked.unreachable)} did not answer: the checkpoints there were not verified")
    say(f"✓ run {chosen}: {counted(len(looked), 'checkpoint')}, every file matches its hash")
    return EXIT_OK


def prune(
    run: str = typer.Argument(metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters."),
    keep: int = typer.Option(min=1, metavar="N", help="Number of newest steps to keep."),
    older_than: float = typer.Option(0.0, min=0, metavar="HOURS", help="Remove only checkpoints older than this."),
    yes: YesOption = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Remove a run's older checkpoints from all its nodes. Shows them and asks first.

    The newest intact checkpoint and the one with the best evaluation (best.json) are always kept.
    """
    from orchestrator.fleet.checkpoints.copy import remove_all
    from orchestrator.fleet.checkpoints.survey import newest_sound
    from orchestrator.plan.checkpoints import HOUR_S, copies, to_prune
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_table, in_order
    from orchestrator.render.console import stderr

    with asked_nodes(inventory, run) as asked:
        chosen, held = asked.of(run)
        say("verifying the newest checkpoint before any other is removed")
        sound = newest_sound(asked.nodes, held)
        if not sound:
            raise RunFailedError(f"no intact checkpoint of run {chosen}: nothing was removed",
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        older = in_order(to_prune(held, sound[0].step, keep=keep, younger_than_s=older_than * HOUR_S))
        if older:
            stderr().print(checkpoint_table(older, copies(held)))
            if not agreed(f"Remove {counted(len(older), 'checkpoint')}?", yes=yes):
                older = []
        outcomes = remove_all(asked.nodes, older)
    failed = [outcome.item.name for outcome in outcomes if outcome.error]
    gone = [one for one in older if one.node not in failed]
    report_errors(outcome.error for outcome in outcomes)
    if as_json:
        write_json({"run_id": chosen, "removed": [checkpoint_data(one, {}) for one in gone]})
    if failed:
        raise PartialError(f"{', '.join(failed)}: checkpoints could not be removed there")
    freed = sum(one.size for one in gone) / 1e6
    say(f"✓ {counted(len(gone), 'checkpoint')} removed, {freed:.1f} MB" if gone else "nothing was removed")
    return EXIT_OK


def _show(held: Sequence[CheckpointCopy], output: Output) -> None:
    from orchestrator.plan.checkpoints import copies
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_table, damage

    counted = copies(held)
    data = {"checkpoints": [checkpoint_data(one, counted) for one in held]}
    table = checkpoint_table(held, counted, wide=output.wide) if held else None
    output.write(data, [f"{one.node}:{one.folder}" for one in held], table)
    for words in damage(held):
        say(words)


def _hashed(nodes: Sequence[Node], held: Sequence[CheckpointCopy], *, as_json: bool) -> Sequence[CheckpointCopy]:
    from orchestrator.fleet.checkpoints.survey import verify as hash_all

    if held and not as_json:
        say(f"hashing {counted(len(held), 'checkpoint')}, {sum(one.size for one in held) / 1e6:.1f} MB, on the nodes")
    return hash_all(nodes, held)
