"""Lines of cells, each column as wide as its widest: for tables whose cells must not be broken in two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from orchestrator.render.printable import printable


def grid(lines: Sequence[Sequence[str]], *, left: int, styles: Sequence[str] = ()) -> Iterator[Text]:
    """One text for each line, of one width whatever the terminal's. The first `left` columns begin at their left, the
    others end at their right; `styles`: one for each line."""
    safe = [tuple(printable(cell) for cell in line) for line in lines]
    widths = [max(map(cell_len, column)) for column in zip(*safe, strict=True)]
    for line, style in zip(safe, styles or [""] * len(safe), strict=True):
        text = Text("  ", style=style).join(
            _aligned(cell, width, right=column >= left)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.rstrip()
        yield text


def _aligned(cell: str, width: int, *, right: bool) -> Text:
    text = Text(cell)
    text.align("right" if right else "left", width)
    return text
