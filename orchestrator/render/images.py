"""Images of the nodes, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from orchestrator.render.table import Cell, Column, Table
from orchestrator.specs.image import Placed

MB = 1_000_000


def images_table(placed: Sequence[Placed], *, wide: bool = False) -> Table:
    """One row for each node, in their order."""
    columns = (
        Column("node"), Column("image"), Column("id", 2), Column("built by", 3), Column("size", 4, right=True),
        Column("moved", 1, right=True), Column("time", 5, right=True), Column("content", wide=True),
    )  # fmt: skip
    rows = [(result.node, result.tag, *_cells(result), result.content) for result in placed]
    return Table(columns=columns, rows=rows, wide=wide)


def images_data(placed: Sequence[Placed]) -> list[dict[str, Any]]:
    """The same for programs; `error` is empty where all went well."""
    return [
        {
            "node": result.node,
            "profile": result.profile,
            "cuda": result.cuda,
            "tag": result.tag,
            "content": result.content,
            "builder": result.builder,
            "image_id": result.delivery.image_id if result.delivery else None,
            "size_bytes": result.delivery.size_bytes if result.delivery else None,
            "moved_bytes": result.delivery.moved_bytes if result.delivery else None,
            "duration_s": round(result.delivery.duration_s, 3) if result.delivery else None,
            "error": str(result.error) if result.error else "",
        }
        for result in placed
    ]


def _cells(result: Placed) -> tuple[Cell, ...]:
    if result.delivery is None:
        return (Text("missing", "red"), result.builder, "", "", "")
    return (
        result.delivery.image_id.removeprefix("sha256:")[:12],
        result.builder,
        f"{result.delivery.size_bytes / MB:.0f} MB",
        _bytes(result.delivery.moved_bytes),
        f"{result.delivery.duration_s:.1f} s",
    )


def _bytes(count: int) -> str:
    if count < MB:
        return f"{count / 1000:.0f} kB" if count else "nothing"
    return f"{count / MB:.0f} MB"
