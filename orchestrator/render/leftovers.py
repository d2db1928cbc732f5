"""Leftovers of orch on nodes and on this computer, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from contract.cost_model.units import megabytes
from orchestrator.render.printable import printable
from orchestrator.render.table import Column, Table
from orchestrator.specs.leftovers import LocalRemains, NodeRemains


def leftovers_view(
    found: Sequence[NodeRemains], folders: Sequence[LocalRemains], images: Mapping[str, int], *, wide: bool = False
) -> RenderableType:
    """A table of the nodes, and one of this computer."""
    columns = (
        Column("node"), Column("folder", 3, wraps=True), Column("runs", right=True), Column("data", right=True),
        Column("cache", 2, right=True), Column("agent", 4, right=True), Column("images", 1, right=True),
        Column("containers", 5, right=True), Column("stays", 6),
    )  # fmt: skip
    rows = []
    for one in found:
        sizes = [megabytes(one.parts[part]) if part in one.parts else "" for part in ("runs", "data", "cache", "agent")]
        pictures = f"{len(one.images)} tags, {megabytes(max(one.images.values()))}" if one.images else ""
        stays = f"{one.others} other names" if one.others else ""
        containers = str(one.containers) if one.containers else ""
        rows.append((one.node, printable(one.folder), *sizes, pictures, containers, stays))
    here = [(str(one.path), megabytes(one.size_bytes)) for one in folders]
    here += [(tag, megabytes(size)) for tag, size in images.items()]
    tables = [Table(columns=columns, rows=rows, wide=wide)] if rows else []
    if here:
        tables.append(Table(columns=(Column("on this computer"), Column("size", right=True)), rows=here, wide=wide))
    return Group(*tables)


def leftovers_data(
    found: Sequence[NodeRemains], folders: Sequence[LocalRemains], images: Mapping[str, int]
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "nodes": [asdict(one) for one in found],
        "controller": {
            "folders": [{"path": str(one.path), "bytes": one.size_bytes} for one in folders],
            "images": dict(images),
        },
    }
