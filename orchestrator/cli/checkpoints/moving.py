"""`orch checkpoints pull`, `push` and `export`."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator.cli.checkpoints.looking import RunArgument, StepOption, asked_nodes, note
from orchestrator.cli.completion import node_names, run_ids
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say, write_json
from orchestrator.specs.errors import EXIT_OK, ConfigError, RunFailedError, UsageError


def pull(
    run: RunArgument = None,
    step: StepOption = None,
    to: Path = typer.Option(
        Path(), metavar="DIR", help="Folder on this computer; files go to DIR/runs/RUN/checkpoints."
    ),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Copy a run's newest intact checkpoint to this computer. A copy that is already here is not transferred again."""
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.checkpoints.pull_push import pull as bring

    with asked_nodes(inventory, run) as asked, progress_view(quiet=as_json) as view:
        _, held = asked.of(run)
        came = bring(asked.nodes, held, to, step=step, notify=view.notify, passed_over=note)
    if as_json:
        data = {"run_id": came.held.run_id, "step": came.held.step, "from": came.held.node}
        write_json({**data, "folder": str(came.folder), "moved": came.moved})
    how = f"from {came.held.node}" if came.moved else "already here"
    say(f"✓ step {came.held.step} of run {came.held.run_id}: {came.folder} ({how}, every file verified)")
    return EXIT_OK


def push(
    run: str | None = typer.Argument(
        None,
        metavar="RUN",
        autocompletion=run_ids,
        help="Run id, or its first characters (default: the newest run in --from).",
    ),
    step: StepOption = None,
    origin: Path = typer.Option(
        Path(), "--from", metavar="DIR", help="Folder that contains runs/RUN/checkpoints, as given to `pull --to`."
    ),
    to: str = typer.Option(
        "", metavar="NODE", autocompletion=node_names, help="Target node (default: the node of rank 0)."
    ),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Copy a checkpoint from this computer to a node, for `orch resume` to continue from.

    Takes the newest intact checkpoint of the run; every file is verified before and after the transfer.
    """
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.checkpoints.pull_push import kept_here, newer
    from orchestrator.fleet.checkpoints.pull_push import push as bring
    from orchestrator.fleet.runs.find_runs import find_runs, must_be_over
    from orchestrator.store.run_record import RunRecord

    kept = kept_here(origin, run or "", step, note)
    plan = RunRecord(kept.run_id).plan()
    if plan is None and not to:
        raise UsageError(f"run {kept.run_id} was not launched from this computer: its nodes are unknown",
                         hint="name a node: --to NODE")  # fmt: skip
    name = to or (plan.cluster or plan.master if plan else "")
    with asked_nodes(inventory, kept.run_id) as asked, progress_view(quiet=as_json) as view:
        must_be_over(find_runs(asked.nodes), kept.run_id)
        node = asked.node(name)
        folders = {part.node: part.folder for part in plan.nodes} if plan else {}
        moved = bring(kept, node, folders.get(name) or asked.places[name], asked.held, notify=view.notify)
        newest = newer(asked.held, kept)
    if as_json:
        data = {"run_id": kept.run_id, "step": kept.step, "to": name, "moved": moved}
        write_json({**data, "newer": newest.step if newest else None})
    say(f"✓ step {kept.step} of run {kept.run_id}: on {name} ({'' if moved else 'already there, '}every file verified)")
    if newest:
        say(f"note: {newest.node} holds step {newest.step}: orch resume continues from that one")
    elif plan and not plan.cluster and name not in folders and name not in plan.away:
        names = ",".join((*(part.node for part in plan.nodes), name))
        say(f"  → orch resume {kept.run_id} --nodes {names}   # {name} was not a node of this run")
    else:
        say(f"  → orch resume {kept.run_id}")
    return EXIT_OK


def export(
    run: RunArgument = None,
    step: StepOption = None,
    to: Path = typer.Option(
        Path("model.safetensors"), metavar="FILE.safetensors", help="File to write on this computer."
    ),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Export a checkpoint's weights as a safetensors file.

    A node that holds the checkpoint converts it in the training image; the file is then copied here.
    """
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.checkpoints.survey import newest_sound
    from orchestrator.fleet.checkpoints.use_model import export as write
    from orchestrator.fleet.checkpoints.use_model import image_for
    from orchestrator.specs.request import LaunchRequest
    from orchestrator.store.run_record import RunRecord

    if to.suffix != ".safetensors":
        raise UsageError(f"--to {to}: expected a name that ends in .safetensors")
    if to.exists():
        raise UsageError(f"{to} already exists; nothing was written", hint="choose another name with --to")
    with asked_nodes(inventory, run) as asked, progress_view(quiet=as_json) as view:
        chosen, held = asked.of(run)
        sound = newest_sound(asked.nodes, held, step)
        if not sound:
            raise RunFailedError(f"no intact checkpoint of run {chosen}" + (f" of step {step}" if step else ""),
                                 hint=f"orch checkpoints verify {chosen}")  # fmt: skip
        one, plan = sound[0], RunRecord(chosen).plan()
        if one.node in {cluster.name for cluster in asked.inventory.clusters}:
            raise ConfigError(f"{one.node} is a cluster: its login node converts no checkpoints",
                              hint=f"orch checkpoints pull {chosen}   # then: python -m trainer export")  # fmt: skip
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
