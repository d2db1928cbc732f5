"""`orch predict`: let the model of a run predict for files of this computer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.model_use import Choice, ToOption, use_model
from orchestrator.cli.report import say, write_json
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """\
orch predict cat.jpg dog.jpg
orch predict RUN texts.csv --to ~/results
orch predict RUN pictures/*.png --checkpoint best
"""
SHOWN = 20
"""Rows of the table on the terminal; the file has all."""


def predict(
    *,
    words: list[str] = typer.Argument(
        metavar="[RUN] FILE...", help="Run id (default: the newest run), then pictures, CSV files or traces."
    ),
    to: ToOption = Path(),
    choice: Choice,
) -> int:
    """Predict for files of this computer with a checkpoint of a run, on a node that holds it.

    The files are copied to a temporary folder of the node. The predictions come back as predictions.csv in
    DIR/runs/RUN/predict. The first word is a run unless a file has that name.
    """
    from orchestrator.plan.model_use import PREDICTIONS

    run = None if Path(words[0]).is_file() else words[0]
    files = [Path(word) for word in words[run is not None :]]
    _must_be_files(run, files)
    used = use_model("predict", run, choice, files=files, to=to)
    table = used.folder / PREDICTIONS
    columns, rows = _read(table)
    if choice.as_json:
        predictions = [dict(zip(columns, row, strict=False)) for row in rows]
        write_json(used.data(file=str(table), predictions=predictions))
    else:
        _show(columns, rows)
    say(f"✓ {table}: {counted(len(rows), 'row')}, step {used.held.step} of run {used.held.run_id}, on {used.held.node}")
    return EXIT_OK


def _must_be_files(run: str | None, files: Sequence[Path]) -> None:
    """ConfigError: a file does not exist. UsageError: there is none, or two have one name."""
    if not files:
        raise UsageError("no file to predict for", hint=f"orch predict {run} FILE")
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ConfigError(f"not a file on this computer: {', '.join(missing)}")
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"several files are named {', '.join(twice)}", hint="predict for them one after another")


def _read(table: Path) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the predictions. ConfigError: the file is not a table."""
    try:
        with table.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{table} holds no predictions: {error}") from error
    return columns, rows


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from orchestrator.cli.report import write_line

    shown = [columns, *rows[:SHOWN]]
    widths = [max(len(row[at]) if at < len(row) else 0 for row in shown) for at in range(len(columns))]
    for row in shown:
        write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
    if len(rows) > SHOWN:
        write_line(f"… and {len(rows) - SHOWN} more")
