"""Which image every node has, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from orchestrator.specs.image import Placed

MB = 1_000_000


def images_table(placed: Sequence[Placed]) -> Table:
    """One row for each node, in their order."""
    table = Table(box=None, pad_edge=False)
    for heading in ("NODE", "IMAGE", "ID", "BUILT BY"):
        table.add_column(heading)
    for heading in ("SIZE", "MOVED", "TIME"):
        table.add_column(heading, justify="right")
    for result in placed:
        table.add_row(result.node, result.tag, *_cells(result))
    return table


def images_data(placed: Sequence[Placed]) -> list[dict[str, Any]]:
    """The same for programs; `error` is empty where all went well."""
    return [
        {
            "node": result.node,
            "profile": result.profile,
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


def _cells(result: Placed) -> tuple[str, ...]:
    if result.delivery is None:
        return ("[red]missing[/red]", result.builder, "", "", "")
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
