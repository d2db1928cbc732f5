"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import node_words, run_ids, workloads
from orchestrator.cli.report import write_json, write_line, write_names

if TYPE_CHECKING:
    from rich.console import RenderableType

InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        metavar="FILE",
        help="Inventory file (default: $ORCH_INVENTORY, ./inventory.yaml, or the lab's while a lab is up).",
        show_default=False,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--nodes",
        metavar="NODES",
        autocompletion=node_words,
        help="A number of nodes, names (alpha,beta or node[01-05] or 'lab*') or labels (room=lab); '!gamma' excludes "
        "one (default: all).",
    ),
]


class OutputFormat(StrEnum):
    """Forms of a list."""

    WIDE = "wide"
    JSON = "json"
    NAME = "name"


class OnlyJson(StrEnum):
    """Form of a result that is no list."""

    JSON = "json"


def note_output(context: typer.Context, value: str | None) -> str | None:
    """Keep the form for `--json`, which is read later."""
    context.meta["output"] = value
    return value


def _is_json(context: typer.Context, value: bool) -> bool:
    """Return whether `--json` or `-o json` was given: options that were given are read before those that were not."""
    return value or context.meta.get("output") == OutputFormat.JSON


OutputOption = Annotated[
    OutputFormat | None,
    typer.Option(
        "-o",
        "--output",
        metavar="wide|json|name",
        callback=note_output,
        help="wide: all columns; json: as --json; name: one name per line.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", callback=_is_json, help="Write JSON to stdout (orch docs json). Does not imply --yes.")
]


@dataclass(frozen=True, kw_only=True)
class Output:
    """The form of a result on stdout."""

    output: OutputOption = None
    as_json: JsonOption = False

    @property
    def wide(self) -> bool:
        return self.output is OutputFormat.WIDE

    @property
    def is_table(self) -> bool:
        return not self.as_json and self.output is not OutputFormat.NAME

    def write(self, data: Any, names: Iterable[str], view: RenderableType | list[str] | None) -> None:
        """Write the result in that form: as JSON, as names, or as a table or lines of text."""
        if self.as_json:
            write_json(data)
        elif self.output is OutputFormat.NAME:
            write_names(names)
        elif isinstance(view, list):
            for line in view:
                write_line(line)
        elif view is not None:
            from orchestrator.render.console import show

            show(view)


WorkloadArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- WORKLOAD...]",
        autocompletion=workloads,
        help="A workload of the trainer with its options, as for `orch launch`.",
    ),
]
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="docker|process", help="process: no containers, all ranks on this computer.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Required without a terminal.")
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters (default: the newest run)."
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...", autocompletion=run_ids, help="Run ids, or their first characters (default: the newest run)."
    ),
]
RunToStopArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", autocompletion=run_ids, help="Run id, or its first characters (default: your only active run)."
    ),
]
TimeoutToStopOption = Annotated[
    int, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait for the last checkpoint.")
]


@dataclass(frozen=True, kw_only=True)
class OutputMode:
    """The options of one invocation, which are not kept with the run."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")] = False
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Measure for some seconds, show the expected speed, and exit.")
    ] = False
    as_json: JsonOption = False
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Do not follow the run; supervise it in the background.")
    ] = False
    no_supervise: Annotated[
        bool, typer.Option("--no-supervise", help="Do not supervise a run that is not followed.")
    ] = False
    confirmed: YesOption = False
    inventory: InventoryOption = None
    engine: EngineOption = ""
