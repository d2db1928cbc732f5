"""`orch checkpoints pull`, `push` and `export`: to this computer, back to a node, and as weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.checkpoints.asked import RunArgument, StepOption, asked_nodes, note
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say, write_json
from orchestrator.specs.errors import EXIT_OK, RunFailedError, UsageError

if TYPE_CHECKING:
    pass


def pull(
    run: RunArgument = None,
    step: StepOption = None,
    to: Annotated[Path, typer.Option("--to", help="Folder; they come to TO/runs/RUN/checkpoints.")] = Path(),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Bring a run's newest sound checkpoint to this computer. What is here already, sound, is not brought again."""
    from orchestrator.fleet.checkpoints.pull_push import pull as bring
    from orchestrator.render.progress import ProgressView

    with asked_nodes(inventory, run) as asked, ProgressView(quiet=as_json) as view:
        _, held = asked.of(run)
        came = bring(asked.nodes, held, to, step=step, notify=view.notify, passed_over=note)
    if as_json:
        write_json({"run_id": came.held.run_id, "step": came.held.step, "from": came.held.node,
                               "folder": str(came.folder), "moved": came.moved})  # fmt: skip
    how = f"from {came.held.node}, every file verified" if came.moved else "was here already, every file verified"
    say(f"✓ step {came.held.step} of run {came.held.run_id}: {came.folder} ({how})")
    return EXIT_OK


def push(
    run: Annotated[str | None, typer.Argument(help="Run id or its beginning; that of the youngest otherwise.")] = None,
    step: StepOption = None,
    origin: Annotated[
        Path,
        typer.Option("--from", metavar="FOLDER", help="What `pull --to` was given; runs/RUN/checkpoints is in it."),
    ] = Path(),
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="Where to; rank 0's node of the run otherwise.")] = "",
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Bring a checkpoint that lies on this computer to a node, so that `orch resume` continues from it.

    The newest sound one of the run, every file verified here and once more there.
    """
    from orchestrator.fleet.checkpoints.pull_push import kept_here, newer
    from orchestrator.fleet.checkpoints.pull_push import push as bring
    from orchestrator.fleet.runs.find_runs import find_runs, must_be_over
    from orchestrator.fleet.runs.records import RunRecord
    from orchestrator.render.progress import ProgressView

    kept = kept_here(origin, run or "", step, note)
    plan = RunRecord(kept.run_id).plan()
    if plan is None and not to:
        raise UsageError(f"this computer has not launched run {kept.run_id}: where is its checkpoint to go?",
                         hint="name a node: --to NODE")  # fmt: skip
    name = to or (plan.master if plan else "")
    with asked_nodes(inventory, kept.run_id) as asked, ProgressView(quiet=as_json) as view:
        must_be_over(find_runs(asked.nodes), kept.run_id)
        node = asked.node(name)
        folders = {part.node: part.folder for part in plan.nodes} if plan else {}
        moved = bring(kept, node, folders.get(name) or asked.places[name], asked.held, notify=view.notify)
        rather = newer(asked.held, kept)
    if as_json:
        write_json({"run_id": kept.run_id, "step": kept.step, "to": name, "moved": moved,
                               "newer": rather.step if rather else None})  # fmt: skip
    how = "every file verified" if moved else "was there already, every file verified"
    say(f"✓ step {kept.step} of run {kept.run_id}: on {name} ({how})")
    if rather:
        say(f"note: {rather.node} holds step {rather.step}: orch resume continues from that one")
    elif plan and name not in folders and name not in plan.away:
        names = ",".join((*(part.node for part in plan.nodes), name))
        say(f"  → orch resume {kept.run_id} --nodes {names}   # {name} was no node of this run")
    else:
        say(f"  → orch resume {kept.run_id}")
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
    with asked_nodes(inventory, run) as asked, ProgressView(quiet=as_json) as view:
        chosen, held = asked.of(run)
        sound = newest_sound(asked.nodes, held, step)
        if not sound:
            raise RunFailedError(f"no sound checkpoint of run {chosen}" + (f" of step {step}" if step else ""),
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        one, plan = sound[0], RunRecord(chosen).plan()
        node = next(node for node in asked.nodes if node.name == one.node)
        parts = plan.nodes if plan else ()
        used = [image for part in parts if part.node == one.node and (image := part.container.image)]
        request = LaunchRequest(project=asked.inventory.project, nodes=())
        image = image_for(node, [*used, request.image_tag("cpu"), request.image_tag("cuda")])
        limits = asked.inventory.node(one.node).limits
        count = write(node, one, image=image, limits=limits, target=to, notify=view.notify)
    if as_json:
        write_json({"run_id": chosen, "step": one.step, "from": one.node, "file": str(to), "bytes": count})
    say(f"✓ {to}: step {one.step} of run {chosen}, {count / 1e6:.1f} MB")
    return EXIT_OK
