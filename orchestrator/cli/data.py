"""`orch data ls`, `rm` and `repair`: data of runs on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import Command, CommandGroup
from orchestrator.cli.options import InventoryOption, NodesOption, Output, YesOption
from orchestrator.cli.report import exit_code, report_errors, say
from orchestrator.specs.errors import EXIT_INTERRUPTED, ConfigError, ConflictError, PartialError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from orchestrator.fleet.runs.held_data import HeldData
    from orchestrator.nodes.interface import Node


def ls(*, nodes: NodesOption = None, output: Output, inventory: InventoryOption = None) -> int:
    """List the data that launches have copied to the nodes: size, and the runs that read it, the newest first.

    `in use`: a running run reads it, or a launch is copying it. Folders of this computer are known from the records of
    runs that were launched here.
    """
    with _asked(inventory, nodes) as (_, _, held, silent):
        names, folders = dict.fromkeys(one.name for one in held), _folders()
        data = [{**asdict(one), "folder": folders.get(one.name, "")} for one in held]
        output.write({"data": data}, names, _table(held, folders, wide=output.wide))
        if not held and not silent and output.is_table:
            say("no data of a run on these nodes")
        return silent


def rm(
    names: list[str] = typer.Argument(
        None, metavar="[DATA...]", help="Names that `ls` shows, or their first characters (default: all)."
    ),
    *,
    nodes: NodesOption = None,
    yes: YesOption = False,
    output: Output,
    inventory: InventoryOption = None,
) -> int:
    """Remove data from the nodes: of these names, otherwise all that is not in use. It asks first.

    Data that a running run reads, or that a launch is copying, is refused if it is named. The next launch with it
    copies it again.
    """
    from orchestrator.fleet.runs.held_data import remove_data

    require_consent(yes=yes, look_first="orch data ls")
    with _asked(inventory, nodes) as (reached, places, held, silent):
        chosen = _chosen(held, names) if names else [one for one in held if not one.in_use]
        output.write({"removed": [asdict(one) for one in chosen]}, dict.fromkeys(one.name for one in chosen),
                     _table(chosen, _folders(), wide=output.wide))  # fmt: skip
        if not chosen:
            say("nothing to remove")
            return silent
        if not any(one.in_use for one in chosen) and not agreed("Remove it?", yes=yes):
            say("nothing was removed")
            return EXIT_INTERRUPTED
        if report_errors(outcome.error for outcome in remove_data(reached, places, chosen)):
            raise PartialError("not everything was removed", hint="the same command again continues")
        return silent


def repair(
    names: list[str] = typer.Argument(
        None, metavar="[DATA...]", help="Names that `ls` shows, or their first characters (default: all)."
    ),
    *,
    nodes: NodesOption = None,
    yes: YesOption = False,
    output: Output,
    inventory: InventoryOption = None,
) -> int:
    """Send damaged files of data again: of these names, otherwise of all that no running run reads. It asks first.

    Damaged are files that a run, or `orch doctor --deep`, has found to be other than what was sent. They come from the
    folder of the launch on this computer while that is unchanged, otherwise from a node with an intact copy. The next
    start of a run does the same.
    """
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.runs.data_repair import repair_held

    require_consent(yes=yes, look_first="orch data ls")
    loaded = load_inventory(inventory)
    selected = {spec.name for spec in (loaded.select(nodes) if nodes else loaded.inventory.holders)}
    with _asked(inventory, None) as (reached, places, held, silent):  # any node may have an intact copy
        found = [one for one in (_chosen(held, names) if names else held) if one.node in selected]
        wanted = [one for one in found if one.is_damaged]
        if names and (used := [one for one in wanted if one.in_use]):
            raise ConflictError(
                f"run {used[0].in_use[0]} reads {used[0].name} on {used[0].node}; nothing was replaced",
                hint=f"orch restart {used[0].in_use[0]}   # replaces it before the start",
            )
        chosen = [one for one in wanted if not one.in_use]
        output.write({"repaired": [asdict(one) for one in chosen]}, dict.fromkeys(one.name for one in chosen),
                     _table(chosen, _folders(), wide=output.wide))  # fmt: skip
        if not chosen:
            say("no data that is known to be damaged, and that no run reads")
            return silent
        if not agreed("Send the damaged files again?", yes=yes):
            say("nothing was replaced")
            return EXIT_INTERRUPTED
        with progress_view(quiet=output.as_json, notes=True) as view:
            errors = repair_held(reached, places, held, chosen, view.notify)
        if report_errors(errors):
            raise PartialError("not everything was replaced", hint="the same command again continues")
        return silent


@contextmanager
def _asked(
    inventory: Path | None, chosen: str | None
) -> Iterator[tuple[Sequence[Node], Mapping[str, str], list[HeldData], int]]:
    """Yield nodes, project folders, the data there, and the exit code for those that did not answer."""
    from orchestrator.fleet.checkpoints.survey import places_in
    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.runs.held_data import look_at_data

    loaded = load_inventory(inventory)
    specs = loaded.select(chosen) if chosen else loaded.inventory.holders
    places = places_in(specs, loaded.inventory.project)
    with connected(specs) as reached:
        asked = [node for node in reached if node.name in places]
        outcomes = look_at_data(reached, places)
        failed = report_errors(outcome.error for outcome in outcomes)
        if asked and len(failed) == len(asked):
            raise PreflightError("none of the nodes answered", hint="orch doctor")
        held = [one for outcome in outcomes for one in outcome.result or ()]
        yield asked, places, held, exit_code(len(failed), len(outcomes))


def _chosen(held: Sequence[HeldData], names: Sequence[str]) -> list[HeldData]:
    """Return the data that is named. ConfigError: there is none of a name, or several begin so."""
    found: list[HeldData] = []
    for name in names:
        meant = [one for one in held if one.name.startswith(name)]
        if len({one.name.partition(".")[0] for one in meant}) != 1:
            several = f"{len({one.name for one in meant})} begin with {name}" if meant else f"no data is named {name}"
            raise ConfigError(f"{several} on these nodes", hint="orch data ls")
        found += [one for one in meant if one not in found]
    return found


def _folders() -> dict[str, str]:
    """Folders of this computer by the name of their copy on a node, from the records of runs."""
    from orchestrator.store.run_record import recorded_runs

    plans = [plan for record in recorded_runs() if (plan := record.plan())]
    return {one.held_as(part.node): one.origin for plan in reversed(plans) for part in plan.nodes for one in plan.data}


def _table(held: Sequence[HeldData], folders: Mapping[str, str], *, wide: bool) -> RenderableType:
    from orchestrator.render.recovery import file_size
    from orchestrator.render.table import Column, Table

    columns = (
        Column("node"), Column("data"), Column("size", right=True), Column("last run"), Column("runs", 2, right=True),
        Column("state", 1), Column("folder", 3, wraps=True),
    )  # fmt: skip
    rows = [
        (one.node, one.name, file_size(one.size_bytes), next(iter(one.runs), ""), str(len(one.runs) or ""),
         ", ".join(filter(None, (
             "damaged" if one.is_damaged else "", "in use" if one.in_use else "",
             "incomplete" if one.name.endswith(".partial") and not one.in_use else "",
         ))),
         folders.get(one.name, ""))
        for one in held
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, wide=wide)


GROUP = CommandGroup(
    help="List, remove and repair the data that launches have copied to the nodes.",
    epilog="orch data ls\norch data rm 8779f2bd",
    no_args_is_help=True,
)
EXAMPLES: dict[Command, str] = {
    ls: "orch data ls\norch data ls -n alpha -o wide",
    rm: "orch data rm 8779f2bd\norch data rm -n beta --yes",
    repair: "orch data repair\norch data repair 8779f2bd -n beta --yes",
}
for command, examples in EXAMPLES.items():
    GROUP.command(epilog=examples)(command)
