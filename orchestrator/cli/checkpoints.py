"""`orch checkpoints`: which there are on the nodes, whether they are sound, and what is to become of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, YesOption
from orchestrator.cli.report import report_error, say
from orchestrator.specs.errors import EXIT_OK, ConfigError, PartialError, PreflightError, RunFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.nodes.seam import Node
    from orchestrator.specs.checkpoint import Held
    from orchestrator.specs.errors import OrchError
    from orchestrator.specs.inventory import Inventory

RunArgument = Annotated[
    str | None, typer.Argument(help="Run id or its beginning; that of the youngest checkpoint otherwise.")
]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help="This step; the newest sound one otherwise.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="The checkpoints that the nodes hold: see, verify, fetch, remove and export them.",
        epilog="Examples: orch checkpoints ls; orch checkpoints pull RUN",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("ls", epilog="Examples: orch checkpoints ls; orch checkpoints ls RUN --verify --json")(ls)
    group.command("verify", epilog="Example: orch checkpoints verify RUN")(verify)
    group.command("pull", epilog="Examples: orch checkpoints pull; orch checkpoints pull RUN --step 300 --to ./kept")(
        pull
    )
    group.command("prune", epilog="Example: orch checkpoints prune RUN --keep 2 --older-than 24")(prune)
    group.command("export", epilog="Example: orch checkpoints export RUN --to model.safetensors")(export)
    app.add_typer(group, name="checkpoints")


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the nodes said."""

    inventory: Inventory
    nodes: Sequence[Node]
    held: Sequence[Held]
    unreachable: Mapping[str, OrchError]

    def of(self, run: str | None) -> tuple[str, list[Held]]:
        """The run meant, and its checkpoints."""
        from orchestrator.plan.checkpoints import run_meant

        chosen = run_meant(self.held, run or "")
        return chosen, [one for one in self.held if one.run_id == chosen]


def ls(
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; all runs otherwise.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file; else sizes decide.")] = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """List checkpoints: run, step, size, age, on which nodes, and on how many a sound copy lies.

    `complete`: its manifest is there and every file has the size that it says. `sound`: the hashes are right too.
    """
    from orchestrator.plan.checkpoints import run_meant
    from orchestrator.render.checkpoints import in_order

    with _asked(inventory, run) as asked:
        chosen = run_meant(asked.held, run) if run else ""
        held = in_order([one for one in asked.held if one.run_id == chosen or not chosen])
        looked = _hashed(asked.nodes, held, as_json=as_json) if verify else held
    _show(looked, as_json=as_json)
    if not looked and not as_json:
        say("no checkpoints yet\n  → orch launch --nodes 5")
    return RunFailedError.exit_code if verify and any(one.problem for one in looked) else EXIT_OK


def verify(
    run: RunArgument = None, step: StepOption = None, as_json: JsonOption = False, inventory: InventoryOption = None
) -> int:
    """Hash every file of a run's checkpoints, on the nodes that hold them, and compare it with its manifest.

    Exit code 1: some copy is damaged; 5: some nodes did not answer.
    """
    from orchestrator.render.checkpoints import in_order

    with _asked(inventory, run) as asked:
        chosen, held = asked.of(run)
        wanted = in_order([one for one in held if step in (None, one.step)])
        if not wanted:
            raise ConfigError(f"no checkpoint of step {step} of run {chosen}", hint=f"orch checkpoints ls {chosen}")
        looked = _hashed(asked.nodes, wanted, as_json=as_json)
    _show(looked, as_json=as_json)
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


def pull(
    run: RunArgument = None,
    step: StepOption = None,
    to: Annotated[Path, typer.Option("--to", help="Folder; they come to TO/runs/RUN/checkpoints.")] = Path(),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Bring a run's newest sound checkpoint to this computer. What is here already, sound, is not brought again."""
    from orchestrator.fleet.checkpoints.pull import pull as bring
    from orchestrator.render.progress import ProgressView

    with _asked(inventory, run) as asked, ProgressView(quiet=as_json) as view:
        _, held = asked.of(run)
        came = bring(asked.nodes, held, to, step=step, notify=view.notify, passed_over=_note)
    if as_json:
        typer.echo(json.dumps({"run_id": came.held.run_id, "step": came.held.step, "from": came.held.node,
                               "folder": str(came.folder), "moved": came.moved}))  # fmt: skip
    how = f"from {came.held.node}, every file verified" if came.moved else "was here already, every file verified"
    say(f"✓ step {came.held.step} of run {came.held.run_id}: {came.folder} ({how})")
    return EXIT_OK


def prune(
    run: Annotated[str, typer.Argument(help="Run id or its beginning.")],
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest steps stay.")],
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, metavar="HOURS", help="Only what is older.")
    ] = 0.0,
    yes: YesOption = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Remove a run's older checkpoints from all its nodes. Shows which, then asks.

    Never the newest sound one, nor the one with the best evaluation (best.json).
    """
    from orchestrator.fleet.checkpoints.remove import remove_all
    from orchestrator.fleet.checkpoints.survey import newest_sound
    from orchestrator.plan.checkpoints import HOUR_S, Keeping, copies, to_prune
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_lines, in_order
    from orchestrator.render.console import stderr

    with _asked(inventory, run) as asked:
        chosen, held = asked.of(run)
        say("reading the newest checkpoint, which must be sound before others may go")
        sound = newest_sound(asked.nodes, held)
        if not sound:
            raise RunFailedError(f"no sound checkpoint of run {chosen} was found: nothing is removed",
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        keeping = Keeping(newest=keep, younger_than_s=older_than * HOUR_S)
        doomed = in_order(to_prune(held, keeping, sound[0].step))
        for line in checkpoint_lines(doomed, copies(held)) if doomed else ():
            stderr().print(line)
        going = doomed if doomed and _agreed(f"Remove {_number(doomed)}?", yes=yes) else []
        outcomes = remove_all(asked.nodes, going)
    failed = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    gone = [one for one in going if one.node not in failed]
    for error in failed.values():
        report_error(error)
    if as_json:
        typer.echo(json.dumps({"run_id": chosen, "removed": [checkpoint_data(one, {}) for one in gone]}))
    if failed:
        raise PartialError(f"{', '.join(failed)}: checkpoints could not be removed there")
    say(f"✓ {_number(gone)} removed, {sum(one.size for one in gone) / 1e6:.1f} MB" if gone else "nothing was removed")
    return EXIT_OK


def export(
    run: RunArgument = None,
    step: StepOption = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.safetensors", help="The file to write here.")] = Path(
        "model.safetensors"
    ),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Write a checkpoint's weights as safetensors: made in the training image on a node that holds it, brought here."""
    from orchestrator.fleet.checkpoints.export import export as write
    from orchestrator.fleet.checkpoints.export import image_for
    from orchestrator.fleet.checkpoints.survey import newest_sound
    from orchestrator.fleet.runs.records import RunRecord
    from orchestrator.render.progress import ProgressView
    from orchestrator.specs.request import LaunchRequest

    if to.suffix != ".safetensors":
        raise UsageError(f"--to {to}: expected a name that ends in .safetensors")
    if to.exists():
        raise UsageError(f"{to} is there already; nothing was written", hint="another name: --to")
    with _asked(inventory, run) as asked, ProgressView(quiet=as_json) as view:
        chosen, held = asked.of(run)
        sound = newest_sound(asked.nodes, held, step)
        if not sound:
            raise RunFailedError(f"no sound checkpoint of run {chosen}" + (f" of step {step}" if step else ""),
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        one, plan = sound[0], RunRecord(chosen).plan()
        node = next(node for node in asked.nodes if node.name == one.node)
        used = [part.container.image for part in plan.nodes if part.node == one.node] if plan else []
        request = LaunchRequest(project=asked.inventory.project, nodes=())
        image = image_for(node, [*used, request.image_tag("cpu"), request.image_tag("cuda")])
        limits = asked.inventory.node(one.node).limits
        count = write(node, one, image=image, limits=limits, target=to, notify=view.notify)
    if as_json:
        typer.echo(json.dumps({"run_id": chosen, "step": one.step, "from": one.node, "file": str(to), "bytes": count}))
    say(f"✓ {to}: step {one.step} of run {chosen}, {count / 1e6:.1f} MB")
    return EXIT_OK


@contextmanager
def _asked(inventory: Path | None, run: str | None) -> Iterator[_Asked]:
    """The nodes that hold this run, else all of the inventory, asked what they have."""
    from orchestrator.fleet.checkpoints.survey import places_in, survey
    from orchestrator.fleet.connect import connected_for

    loaded = load_inventory(inventory).inventory
    places = places_in(loaded.nodes, loaded.project)
    with connected_for(loaded.nodes, run) as reached:
        nodes = [node for node in reached if node.name in places]
        found = survey(nodes, places, run or "")
        for error in found.unreachable.values():
            _note(error)
        if nodes and len(found.unreachable) == len(nodes):
            raise PreflightError("none of the nodes answered", hint="orch doctor")
        yield _Asked(inventory=loaded, nodes=nodes, held=found.held, unreachable=found.unreachable)


def _hashed(nodes: Sequence[Node], held: Sequence[Held], *, as_json: bool) -> Sequence[Held]:
    from orchestrator.fleet.checkpoints.survey import verify as hash_all

    if held and not as_json:
        say(f"hashing {_number(held)}, {sum(one.size for one in held) / 1e6:.1f} MB, where they lie")
    return hash_all(nodes, held)


def _show(held: Sequence[Held], *, as_json: bool) -> None:
    from orchestrator.plan.checkpoints import copies
    from orchestrator.render.checkpoints import checkpoint_data, checkpoint_lines, damage
    from orchestrator.render.console import stdout

    counted = copies(held)
    if as_json:
        typer.echo(json.dumps({"checkpoints": [checkpoint_data(one, counted) for one in held]}))
    for line in checkpoint_lines(held, counted) if held and not as_json else ():
        stdout().print(line)
    for words in damage(held):
        say(words)


def _agreed(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to agree to it", hint="look at the lines above, then add --yes")
    return typer.confirm(question, default=False, err=True)


def _note(error: OrchError) -> None:
    say(f"note: {error}")


def _number(held: Sequence[Held]) -> str:
    return f"{len(held)} checkpoint{'' if len(held) == 1 else 's'}"
