"""`orch uninstall`: remove what orch has left on nodes and on this computer."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from contextlib import closing
from getpass import getuser
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.context import ChosenNodes
from orchestrator.cli.options import Output, YesOption
from orchestrator.cli.report import exit_code, report_errors, say
from orchestrator.lab.state import inventory_file
from orchestrator.specs.errors import EXIT_INTERRUPTED, ConflictError, PartialError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.specs.leftovers import NodeRemains

EXAMPLES = """\
orch uninstall --dry-run
orch uninstall
orch uninstall --nodes gamma
"""


NAMED = 20
"""Runs that are named."""
_LAST = "removed; orch itself: uv tool uninstall orch, or pipx uninstall orch"


def uninstall(
    *,
    chosen: ChosenNodes,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be removed."),
    output: Output,
    yes: YesOption = False,
) -> int:
    """Show what orch has left on the nodes and on this computer, with sizes, and remove it on consent.

    On a node: the project's runs with their checkpoints, data and caches, containers of ended runs, and images. On this
    computer: records and accepted host keys of all projects, and the project's images, with those that all projects
    share if no other has one; with --nodes it is left as it is. Active runs
    are refused, and nodes with runs of another user. What orch has not made stays. Exit code 5: some nodes did not
    answer or were refused, or something could not be removed.
    """
    if not dry_run:
        require_consent(yes=yes, look_first="orch uninstall --dry-run")
    from orchestrator.fleet import uninstall as fleet
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.nodes.local import LocalNode
    from orchestrator.render.leftovers import leftovers_data, leftovers_view

    loaded, specs = chosen.load()
    project, here_too = loaded.inventory.project, not chosen.nodes
    with closing(LocalNode()) as controller, connected(specs) as nodes:
        asked = [*nodes, *(stand_ins(specs) if here_too else ())]
        _refuse_active(asked, project)
        outcomes = fleet.node_remains(specs, nodes, project, getuser())
        found = [outcome.result for outcome in outcomes if outcome.result]
        folders = fleet.local_folders() if here_too else ()
        images, shared = fleet.local_images(controller, project) if here_too else ({}, {})
        silent = report_errors(outcome.error for outcome in outcomes)
        view = leftovers_view(found, folders, images, wide=output.wide)
        output.write(leftovers_data(found, folders, images), [one.node for one in found if not one.is_empty], view)
        unanswered = exit_code(len(silent), len(outcomes))
        if all(one.is_empty for one in found) and not folders and not images:
            say("nothing was removed" if silent else "nothing of orch was found")
            return unanswered
        _name_runs(found, shared)
        if dry_run:
            return unanswered
        if here_too and inventory_file().exists():
            raise ConflictError("a lab is up: its machines are containers of this computer", hint="orch lab down")
        if not agreed("Remove all of it? It cannot be restored.", yes=yes):
            say("nothing was removed")
            return EXIT_INTERRUPTED
        _refuse_active(asked, project)  # one may have begun since
        failed = report_errors(outcome.error for outcome in fleet.remove_from_nodes(specs, nodes, found, project))
        if here_too and not failed and not silent:
            failed = report_errors(fleet.remove_locally(folders, images, controller))
    if failed:
        again = shlex.join(["orch", "uninstall", *(("--nodes", chosen.nodes) if chosen.nodes else ())])
        raise PartialError("not everything was removed", hint=f"{again}   # continues")
    if here_too:
        say(_LAST if not silent else "this computer was left as it is, to continue from: orch uninstall")
    return unanswered


def _refuse_active(nodes: Sequence[Node], project: str) -> None:
    """ConflictError: a run of the project is active on a node."""
    from orchestrator.fleet.runs.find_runs import find_runs

    active = [run for run in find_runs(nodes).runs if run.is_going and run.project == project]
    if active:
        names = ", ".join(f"{run.run_id} (by {run.user})" for run in active)
        raise ConflictError(f"active: {names}; nothing was removed", hint=f"orch stop {active[0].run_id}")


def _name_runs(found: Sequence[NodeRemains], shared: Collection[str]) -> None:
    """Name the runs whose results would be lost, and images of this computer that stay."""
    if shared:
        say(f"{', '.join(shared)}: not removed, as images of another project are on this computer")
    runs = sorted({run for one in found for run in one.runs})
    if runs:
        more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
        say(f"runs with checkpoints and all that they wrote: {', '.join(runs[:NAMED])}{more}")
        say(f"  → orch pull {runs[0]}   # copies what it wrote to this computer")
