"""`orch clean`: remove what ended runs left on the nodes."""

from __future__ import annotations

import typer

from orchestrator.cli.completion import run_ids
from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption
from orchestrator.cli.report import report_errors, say, write_json
from orchestrator.specs.errors import EXIT_OK, PartialError, PreflightError

EXAMPLES = "orch clean"


def clean(
    run: str = typer.Argument(
        "", metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters (default: every ended run)."
    ),
    nodes: NodesOption = None,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Remove the containers of ended runs from all nodes. Their logs stay on this computer.

    Active runs, checkpoints, data and images are not touched. If a run was stopped while a node was out of reach, its
    containers there are stopped and removed.
    """
    from orchestrator.fleet.connect import connected, stand_ins
    from orchestrator.fleet.runs.stop import clean as clean_nodes

    specs = load_inventory(inventory).select(nodes)
    with connected(specs) as reached:
        outcomes = clean_nodes([*reached, *(stand_ins(specs) if nodes is None else ())], run_id=run)
    removed: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.result:  # a machine and the process that stood in for it have one name
            removed.setdefault(outcome.item.name, []).extend(outcome.result.removed)
            for run_id in outcome.result.left_over:
                say(f"{outcome.item.name}: what was left of run {run_id}, stopped while this node was away, is ended")
            for line in outcome.result.not_understood:
                say(f"note: {line}")
    if as_json:
        write_json({"removed": removed})
    failed = report_errors(outcome.error for outcome in outcomes)
    if not as_json and len(failed) < len(outcomes):
        total = sum(map(len, removed.values()))
        say(f"✓ {total} containers of ended runs removed" if total else "nothing to remove")
    if failed and len(failed) == len(outcomes) and all(e.exit_code == PreflightError.exit_code for e in failed):
        return PreflightError.exit_code
    if failed:
        raise PartialError(f"{len(failed)} of {len(outcomes)} nodes could not be cleaned")
    return EXIT_OK
