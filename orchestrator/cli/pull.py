"""`orch pull`: copy the files that a run wrote to this computer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from contract.run_folder import CODE_FOLDER
from orchestrator.cli.completion import run_ids
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import report_errors, say, write_json
from orchestrator.render.printable import counted, printable
from orchestrator.specs.errors import EXIT_OK, PartialError

if TYPE_CHECKING:
    from orchestrator.fleet.runs.bring_results import Brought
    from orchestrator.fleet.runs.results import RunFile

MOST_NAMED = 5
EXAMPLES = """\
orch pull
orch pull RUN --to ~/results
orch pull RUN output/model.pt 'logs/*.csv'
"""
MOST_NAMED = 4
"""Files of the user's script that are printed."""


def pull(
    run: str | None = typer.Argument(
        None, metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters (default: the newest run)."
    ),
    paths: list[str] | None = typer.Argument(
        None, metavar="[PATH]...", help="Files, folders or patterns, as your script names them (default: all files)."
    ),
    to: Path = typer.Option(Path(), metavar="DIR", help="Folder on this computer; files go to DIR/runs/RUN."),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Copy everything that a run wrote, from whichever node, to this computer.

    A file that several nodes have comes once, from the node with the lowest rank; a different file of the same name
    goes to nodes/NODE. Copies of your code that the run did not change stay there. A second call transfers only what is
    missing or has changed. Active runs may be pulled, too: files that
    are being written come as they are, and are named.
    """
    from orchestrator.cli.report import progress_view
    from orchestrator.fleet.checkpoints.survey import places_for
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.bring_results import bring_results
    from orchestrator.fleet.runs.results import find_results, run_with_files
    from orchestrator.store.run_record import RunRecord, spoken_by_nodes

    loaded = load_inventory(inventory).inventory
    places = places_for(loaded.holders, loaded.project, run or "")
    with connected_for(loaded.holders, run) as reached, progress_view(quiet=as_json) as view:
        known = [node for node in reached if node.name in places]
        run_id = run_with_files(known, places, run or "")
        plan = RunRecord(run_id).plan()
        ranks = {part.node: number for number, part in enumerate(plan.nodes)} if plan else {}
        nodes = sorted(known, key=lambda node: ranks.get(node.name, len(ranks)))
        found = find_results(nodes, places, run_id, paths or ())
        report_errors(found.unreachable.values())
        if line := spoken_by_nodes(run_id):
            say(f"note: {line}")
        brought = bring_results(nodes, found, to, view.notify)
    failed = report_errors(outcome.error for outcome in brought.outcomes)
    files = [file for file in found.files if file not in brought.left_out and file not in brought.removed]
    if as_json:
        lists = {
            "files": [*map(_described, files)],
            "left_out": [*map(_described, brought.left_out)],
            "still_written": [*map(_described, brought.still_written)],
        }
        write_json({"run_id": run_id, "folder": str(brought.folder), "moved": brought.moved, **lists})
    _say_changes(brought)
    if failed or found.unreachable:
        raise PartialError(
            f"{', '.join(error.node for error in [*failed, *found.unreachable.values()])}: not all files were copied",
            hint=f"again, for the rest: orch pull {run_id}" + (f" --to {to}" if to != Path() else ""),
        )
    moved = f"{brought.moved / 1e6:.1f} MB copied" if brought.moved else "already here"
    size = sum(file.size for file in files)
    say(f"✓ run {run_id}: {counted(len(files), 'file')}, {size / 1e6:.1f} MB in {brought.folder} ({moved})")
    if own := [file.target for file in files if file.target.startswith(f"{CODE_FOLDER}/")]:
        _say_own([str(brought.folder / name) for name in own])
    return EXIT_OK


def _say_own(names: Sequence[str]) -> None:
    """Name the files that the user's script wrote beside itself, such as a model."""
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    say(f"  written in the folder of your script: {', '.join(names[:MOST_NAMED])}{more}")


def _say_changes(brought: Brought) -> None:
    """Name files that an active run has changed or removed while they were copied."""
    reasons = (
        ("still written to while it was copied; pull again for the rest", brought.still_written),
        ("removed on the node before it was copied", brought.removed),
    )
    for reason, files in reasons:
        named = [f"{file.node} {printable(file.path)}" for file in files[:MOST_NAMED]]
        more = [f"{len(files) - MOST_NAMED} more"] if len(files) > MOST_NAMED else []
        if named:
            say(f"note: {reason}: {', '.join([*named, *more])}")


def _described(file: RunFile) -> dict[str, object]:
    return {"path": file.target, "node": file.node, "bytes": file.size}
