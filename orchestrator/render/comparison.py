"""The comparison of two runs as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from orchestrator.render.table import Cell, Column, Table

Row = Mapping[str, object]


def comparison_table(names: tuple[str, str], rows: Sequence[Row]) -> Table:
    """A line for each value: its section where it begins, its name, and both values; equal ones are dimmed."""
    cells: list[tuple[Cell, ...]] = []
    styles, before = [], ""
    for row in rows:
        section = str(row["section"])
        title = Text(section if section != before else "", "bold")
        cells.append((title, str(row["name"]), _text(row["a"]), _text(row["b"])))
        styles.append("dim" if row["a"] == row["b"] else "")
        before = section
    columns = (Column("", 1), Column("value"), Column(names[0], wraps=True), Column(names[1], wraps=True))
    return Table(columns=columns, rows=cells, styles=styles)


def _text(value: object) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,}" if isinstance(
        value, int | float) else str(value)  # fmt: skip
