"""`orch runs rerun`: start a run again, as a new run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import run_ids
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say
from orchestrator.plan.command import launch_words
from orchestrator.specs.errors import ConfigError, OrchError, UsageError
from orchestrator.specs.launch_options import LaunchOptions

if TYPE_CHECKING:
    from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir
    from orchestrator.specs.inventory import Inventory
    from orchestrator.specs.plan import Plan


@expand(omit=("resume", "forecast", "shard"))
def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters.")],
    options: LaunchOptions,
    mode: OutputMode,
) -> int:
    """Start a run of this computer again, as a new run: same command, options, code, data, image and nodes.

    Options that are given replace those of the run. Code that has changed here is taken from a node that keeps it as it
    was. A node that is not in the inventory any more is left out; a step then keeps its number of samples. What differs
    is shown with the plan. Nothing of the run that is repeated is changed.
    """
    from orchestrator.cli.launching.run_launch import run_launch
    from orchestrator.fleet.planning.request import with_engine
    from orchestrator.store.run_record import record_of

    loaded = load_inventory(mode.inventory)
    record = record_of(run)
    plan = record.plan()
    if plan is None:
        why = record.unreadable or "it never started"
        raise ConfigError(f"the plan of run {record.run_id} is not on record: {why}", hint=f"orch logs {record.run_id}")
    if on := plan.cluster or options.on:
        was = f"run {record.run_id} was a job of cluster {on}: " if plan.cluster else ""
        hint = shlex.join(launch_words(replace(plan, cluster=on)))
        raise UsageError(f"{was}`rerun` repeats runs on machines", hint=hint)
    if not options.engine and not any(part.container.image for part in plan.nodes):
        options, mode = replace(options, engine="process"), replace(mode, engine="process")
    mode = replace(mode, inventory=loaded.path.absolute())
    machines = with_engine(loaded.inventory, options.engine)
    options = _as_before(plan, options, machines)
    with _code(plan, options, machines) as workdir:
        return run_launch(loaded.inventory, replace(options, workdir=workdir), mode, again=plan)


def _as_before(plan: Plan, options: LaunchOptions, inventory: Inventory) -> LaunchOptions:
    """Return the options with command, nodes and rank 0 of the plan. ConfigError: no node or data of it is left."""
    from orchestrator.fleet.runs.load_state import samples_per_step_of
    from orchestrator.plan.command import same_step
    from orchestrator.store.run_record import RunRecord

    command, nodes, master = plan.command, options.nodes, options.master
    if nodes is None:
        known = {spec.name for spec in inventory.nodes}
        names = [*(part.node for part in plan.nodes), *plan.away]
        left = [name for name in names if name in known]
        if not left:
            raise ConfigError(f"no node of run {plan.run_id} is in {inventory.filename}: {', '.join(names)}",
                              hint=f"orch runs rerun {plan.run_id} -n NODES")  # fmt: skip
        if gone := [name for name in names if name not in known]:
            command = same_step(command, samples_per_step_of(RunRecord(plan.run_id)))
            kept = "; a step keeps its number of samples" if command != plan.command else ""
            say(f"note: {', '.join(gone)}: not in {inventory.filename} any more, left out{kept}")
        nodes, master = ",".join(left), master or (plan.master if plan.master in left else "")
    options = replace(options, command=command, nodes=nodes, master=master)
    if plan.data_digest and not options.data:
        _data_is_somewhere(plan, options, inventory)
    return options


def _data_is_somewhere(plan: Plan, options: LaunchOptions, inventory: Inventory) -> None:
    """ConfigError: the data of the run is neither in its folder here nor on a node that answers."""
    from orchestrator.fleet.runs.artifacts import artifacts_of, as_launched, holders_of

    data = next(artifact for artifact in artifacts_of(plan) if artifact.what == "data")
    if as_launched(data):
        return
    with _on_nodes(plan, inventory, options.nodes) as stores:
        holding = [one.node.name for one in holders_of(data, stores)]
    if not holding or (plan.data_parts and len(holding) < len(stores)):
        state = (
            "holds other data now" if plan.data_origin and Path(plan.data_origin).is_dir() else "is not here any more"
        )
        raise ConfigError(
            f"{plan.data_origin or 'its folder'} {state}, and no node that answers has the data of run {plan.run_id}",
            hint=f"with other data: orch runs rerun {plan.run_id} --data FOLDER",
        )
    say(f"note: {plan.data_origin} has changed; the data of run {plan.run_id} is taken from {', '.join(holding)}")


@contextmanager
def _code(plan: Plan, options: LaunchOptions, inventory: Inventory) -> Iterator[Path | None]:
    """Yield the folder with the code of the run; None if it has none. ConfigError: it is not kept anywhere."""
    from orchestrator.fleet.runs.artifacts import artifacts_of, as_launched

    code = next((artifact for artifact in artifacts_of(plan) if artifact.is_code), None)
    if options.workdir or code is None or not plan.own_code:
        yield options.workdir
        return
    if folder := as_launched(code):
        say(f"code: {folder}, as run {plan.run_id} had it")
        yield folder
        return
    with TemporaryDirectory(prefix="orch-code-") as aside:
        found = _fetched(plan, code, inventory, Path(aside))
        say(f"code: {plan.code_origin} has changed; taken from {found.name}, as run {plan.run_id} had it")
        yield found


def _fetched(plan: Plan, code: Artifact, inventory: Inventory, aside: Path) -> Path:
    """Copy the code from the first node that has it into a folder with the name of that node. ConfigError: none has."""
    from orchestrator.fleet.runs.artifacts import fetch, holders_of

    problems = list[OrchError]()
    with _on_nodes(plan, inventory) as stores:
        for holder in holders_of(code, stores):
            try:
                fetch(code, holder, aside / holder.node.name)
            except OrchError as error:
                problems.append(error)
            else:
                return aside / holder.node.name
    origin = plan.code_origin or "FOLDER"
    raise ConfigError(
        f"the code of run {plan.run_id} is not kept: {plan.code_origin or 'its folder'} has changed or is gone, and no "
        "node that answers has it as it was",
        problems=list(map(str, problems)),
        hint=f"with the code as it is now: orch runs rerun {plan.run_id} --workdir {shlex.quote(origin)}",
    )


@contextmanager
def _on_nodes(plan: Plan, inventory: Inventory, chosen: str | None = None) -> Iterator[Sequence[ProjectDir]]:
    """Yield the project's folder on each node of the plan that the inventory has (of those chosen)."""
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.runs.artifacts import ProjectDir
    from orchestrator.specs.selection import select_nodes

    names = {part.node for part in plan.nodes}
    specs = (
        select_nodes(inventory, nodes=chosen, labels=()) if chosen else [s for s in inventory.nodes if s.name in names]
    )
    folders = {spec.name: spec.folder(inventory.project) for spec in specs}
    with connected(specs) as nodes:
        yield [ProjectDir(node=node, folder=folders[node.name]) for node in nodes]
