"""The one table: each column as wide as its cells. On a narrow terminal the least important columns are dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from rich.console import Console, ConsoleOptions
from rich.text import Text

from orchestrator.render.printable import printable

GAP = 2
WRAPPED = 20
"""Least width of a column that is wrapped."""

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column, and whether it is dropped where the terminal is too narrow."""

    title: str
    drop: int = 0
    """The highest of a table is dropped first; 0 is never dropped."""
    right: bool = False
    wraps: bool = False
    """True if its cells may be wrapped between words."""
    wide: bool = False
    """True if it is shown with `-o wide` only."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells, for rich to print. A cell may have several lines; a column without any text is left out.

    Where not even the columns that are never dropped fit, each row becomes a block with one line per column.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    styles: Sequence[str] = ()
    """One per row, for cells without a style of their own."""
    title: Text | None = None
    spaced: bool = False
    """True if an empty line separates rows."""
    wide: bool = False
    """True if all columns are shown, whatever the width of the terminal."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        if self.title:
            yield self.title
        styles = self.styles or [""] * len(self.rows)
        rows = [[_text(cell, style) for cell in row] for row, style in zip(self.rows, styles, strict=True)]
        filled = [n for n in range(len(self.columns)) if any(row[n] for row in rows)]
        shown = [n for n in filled if self.wide or not self.columns[n].wide]
        titles = {n: len(self.columns[n].title) for n in shown}
        needed = {n: max(titles[n], *(line.cell_len for row in rows for line in row[n].split("\n"))) for n in shown}
        widths = {n: min(needed[n], max(titles[n], WRAPPED) if self.columns[n].wraps else needed[n]) for n in shown}
        while (spare := options.max_width + GAP - sum(widths[n] + GAP for n in shown)) < 0 and not self.wide:
            drops = {self.columns[n].drop: n for n in shown}
            if not max(drops):
                yield from _blocks([column.title for column in self.columns], rows, list(widths), options.max_width)
                return
            shown.remove(drops[max(drops)])
        for n in shown:
            more = max(0, min(needed[n] - widths[n], spare))
            widths[n], spare = widths[n] + more, spare - more
        columns = [(widths[n], self.columns[n].right) for n in shown]
        if any(titles.values()):
            yield from _row([Text(self.columns[n].title, "bold") for n in shown], columns)
        for number, row in enumerate(rows):
            if self.spaced and number:
                yield Text()
            yield from _row([row[n] for n in shown], columns)


def _text(cell: Cell, style: str) -> Text:
    """The cell, with nothing in it that would move the cursor or end its line."""
    if isinstance(cell, Text):
        return cell
    return Text("\n".join(map(printable, cell.split("\n"))), style)


def _row(cells: Sequence[Text], columns: Sequence[tuple[int, bool]]) -> Iterator[Text]:
    """The lines of a row; `columns`: width, and whether text ends at the right."""
    for parts in zip_longest(*map(_lines, cells, (width for width, _ in columns))):
        line = Text(no_wrap=True, overflow="ignore")
        for part, (width, right) in zip(parts, columns, strict=True):
            text, blank = part or Text(), width - (part or Text()).cell_len
            line.append(" " * blank if right else "").append(text).append(" " * (GAP if right else blank + GAP))
        line.rstrip()
        yield line


def _lines(cell: Text, width: int) -> Iterator[Text]:
    """The cell's lines, those that are too long wrapped between words."""
    for line in cell.split("\n"):
        if line.cell_len <= width:
            yield line
        else:
            parts = wrap(line.plain, width, break_long_words=False, break_on_hyphens=False)
            yield from (Text(part, cell.style) for part in parts)


def _blocks(titles: Sequence[str], rows: Sequence[Sequence[Text]], shown: Sequence[int], most: int) -> Iterator[Text]:
    """A block for each row: on each line the title of a column and its cell."""
    first = max(len(titles[n]) for n in shown)
    columns = [(first, False), (max(WRAPPED, most - first - GAP), False)]
    for number, row in enumerate(rows):
        if number:
            yield Text()
        for n in shown:
            if row[n]:
                yield from _row([Text(titles[n], "bold"), row[n]], columns)
