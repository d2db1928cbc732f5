"""Words that the shell completes: runs, nodes and labels, findings, workloads, states.

No node is asked, and what takes long is not loaded: a Tab is to be answered in 0.15 s, of which Python takes most.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

MOST = 200
"""Runs that are offered, the newest."""
CACHE = "completion.json"
"""Names and labels of the inventory that was read last, in the state folder: reading it takes longer than all else."""


def completed_command() -> Sequence[str] | None:
    """The words that precede the one to be completed, without `orch`; None where no shell asks."""
    if "_ORCH_COMPLETE" not in os.environ:
        return None
    typed = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS"))
    if typed is None:
        return None
    with suppress(ValueError):  # a quote that is not closed yet
        words = shlex.split(typed)
        position = os.environ.get("COMP_CWORD", "")
        end = int(position) if position.isdecimal() else len(words) - (not typed.endswith((" ", "\n")))
        return words[1:end]
    return typed.split()[1:-1]


def as_typed(command: Any) -> None:
    """Leave the values of a command line as they were typed: their conversion, which loads pydantic, is for a call."""

    def typed(parameter: Any) -> Any:
        if parameter is not None:
            parameter.process_value = lambda _context, value: value
        return parameter

    of_help = command.get_help_option
    command.get_help_option = lambda context: typed(of_help(context))
    for parameter in command.params:
        typed(parameter)


def run_ids(incomplete: str) -> list[str]:
    """Ids of runs on record, the newest first."""
    from platformdirs import user_state_path

    from orchestrator.specs.run import RUN_ID

    found = []
    with suppress(OSError), os.scandir(user_state_path("orch") / "runs") as entries:
        for entry in entries:
            if entry.name.startswith(incomplete) and re.fullmatch(RUN_ID, entry.name):
                with suppress(OSError):
                    found.append((-entry.stat().st_mtime, entry.name))
    return [name for _, name in sorted(found)[:MOST]]


def run_or_node(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, and names of nodes."""
    return [*run_ids(incomplete), *node_names(context, incomplete)]


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the inventory's nodes; after a comma, one more."""
    return _after_comma(_inventory(context)["nodes"], incomplete)


def node_words(context: typer.Context, incomplete: str) -> list[str]:
    """Words for `--nodes`: names and labels."""
    known = _inventory(context)
    return _after_comma([*known["nodes"], *known["labels"]], incomplete)


def cluster_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the inventory's clusters."""
    return [name for name in _inventory(context)["clusters"] if name.startswith(incomplete)]


def state_words(incomplete: str) -> list[str]:
    """States of runs for `--state`."""
    active = ("queued", "launching", "starting", "running", "restarting", "stopping")
    states = (*active, "succeeded", "stopped", "failed", "lost", "unknown")
    return _after_comma(states, incomplete)


def finding_ids(incomplete: str) -> list[str]:
    """Ids of findings and their areas."""
    package = Path(__file__).parents[1]
    pages = [page for kind in ("findings", "../docs/findings") for page in (package / kind).glob("[a-z]*.md")]
    ids = sorted({id for page in pages for id in re.findall(r"^## ([a-z]+\.\w+): ", page.read_text("utf-8"), re.M)})
    words = dict.fromkeys((*(one.partition(".")[0] for one in ids), *ids))
    return [word for word in words if word.startswith(incomplete)]


def workloads(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads of the trainer, as the first word of a COMMAND."""
    if context.params.get("command"):
        return []
    return [name for name in workload_names() if name.startswith(incomplete)]


def workload_names() -> list[str]:
    """Return the names of the trainer's workloads."""
    with suppress(OSError, SyntaxError, ValueError):  # read, not imported: the trainer is not of this side
        registry = Path(__file__).parents[2] / "trainer" / "workloads" / "__init__.py"
        for node in ast.parse(registry.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WORKLOADS":
                return list(ast.literal_eval(node.value))
    return []


def _after_comma(words: Iterable[str], incomplete: str) -> list[str]:
    """The words after those that `incomplete` has already, separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",") if comma else []
    return [before + comma + word for word in words if word.startswith(last) and word not in taken]


def _inventory(context: typer.Context) -> dict[str, list[str]]:
    """Names and labels of the inventory, and its clusters; none where it is missing or not valid. Kept until the file
    changes."""
    nothing: dict[str, list[str]] = {"nodes": [], "labels": [], "clusters": []}
    try:
        from orchestrator.cli.inventory_place import inventory_place
        from orchestrator.nodes.state_files import replace_file

        given = context.params.get("inventory") or (context.parent and context.parent.params.get("inventory"))
        file = inventory_place(Path(given) if given else None)[0].absolute()
        stat = file.stat()
        key = [str(file), stat.st_mtime_ns, stat.st_size]
        from platformdirs import user_state_path

        cache = user_state_path("orch") / CACHE
        with suppress(OSError, ValueError, KeyError, TypeError):
            read: Any = json.loads(cache.read_text("utf-8"))
            if read["key"] == key:
                return {name: [str(word) for word in read[name]] for name in nothing}
        found = _read(file)
        with suppress(OSError):
            replace_file(cache, json.dumps({"key": key, **found}))
        return found
    except Exception:  # a message would be typed into the command line
        return nothing


def _read(file: Path) -> dict[str, list[str]]:
    from orchestrator.specs.inventory_files.inventory_file import read_inventory

    inventory = read_inventory(file)
    nodes = inventory.nodes
    labels = {f"{key}={value}" for node in nodes for key, text in node.labels.items() for value in text.split(",")}
    clusters = [cluster.name for cluster in inventory.clusters]
    return {"nodes": [node.name for node in nodes], "labels": sorted(labels), "clusters": clusters}
