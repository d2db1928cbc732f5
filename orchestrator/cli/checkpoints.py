"""`orch checkpoints`: list, verify, copy, remove and export the checkpoints on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import node_names, run_ids
from orchestrator.cli.consent import agreed
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import CommandGroup
from orchestrator.cli.options import InventoryOption, JsonOption, Output, YesOption
from orchestrator.cli.report import progress_view, report_errors, say, write_json
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, ConfigError, PartialError, PreflightError, RunFailedError, UsageError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.specs.checkpoint import CheckpointCopy
    from orchestrator.specs.errors import OrchError
    from orchestrator.specs.inventory import Inventory

GROUP = CommandGroup(
    help="List, verify, pull, push, prune and export the checkpoints on the nodes.",
    epilog="orch checkpoints ls\norch checkpoints pull RUN",
    no_args_is_help=True,
)
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


@GROUP.command(epilog="orch checkpoints ls\norch checkpoints ls RUN --verify -o wide")
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


@GROUP.command(epilog="orch checkpoints verify RUN")
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


@GROUP.command(epilog="orch checkpoints prune RUN --keep 2 --older-than 24")
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


@GROUP.command(epilog="orch checkpoints pull\norch checkpoints pull RUN --step 300 --to ./kept")
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


@GROUP.command(epilog="orch checkpoints push RUN --from ./kept\norch checkpoints push --to beta")
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
    from orchestrator.fleet.checkpoints.pull_push import newer, saved_here
    from orchestrator.fleet.checkpoints.pull_push import push as bring
    from orchestrator.fleet.runs.find_runs import find_runs, must_be_over
    from orchestrator.store.run_record import RunRecord

    copy = saved_here(origin, run or "", step, note)
    plan = RunRecord(copy.run_id).plan()
    if plan is None and not to:
        raise UsageError(f"run {copy.run_id} was not launched from this computer: its nodes are unknown",
                         hint="name a node: --to NODE")  # fmt: skip
    name = to or (plan.cluster or plan.master if plan else "")
    with asked_nodes(inventory, copy.run_id) as asked, progress_view(quiet=as_json) as view:
        must_be_over(find_runs(asked.nodes), copy.run_id)
        node = asked.node(name)
        folders = {part.node: part.folder for part in plan.nodes} if plan else {}
        moved = bring(copy, node, folders.get(name) or asked.places[name], asked.held, notify=view.notify)
        newest = newer(asked.held, copy)
    if as_json:
        data = {"run_id": copy.run_id, "step": copy.step, "to": name, "moved": moved}
        write_json({**data, "newer": newest.step if newest else None})
    say(f"✓ step {copy.step} of run {copy.run_id}: on {name} ({'' if moved else 'already there, '}every file verified)")
    if newest:
        say(f"note: {newest.node} holds step {newest.step}: orch resume continues from that one")
    elif plan and not plan.cluster and name not in folders and name not in plan.away:
        names = ",".join((*(part.node for part in plan.nodes), name))
        say(f"  → orch resume {copy.run_id} --nodes {names}   # {name} was not a node of this run")
    else:
        say(f"  → orch resume {copy.run_id}")
    return EXIT_OK


@GROUP.command(epilog="orch checkpoints export RUN --to model.safetensors")
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
