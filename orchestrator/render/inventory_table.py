"""The inventory to people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from orchestrator.specs.inventory import NodeSpec


def nodes_table(nodes: Sequence[NodeSpec]) -> Table:
    """One line a node, in the order of ranks; columns that say the same for none are left out."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns: dict[str, list[str]] = {
        "#": [str(rank) for rank in range(len(nodes))],
        "node": [node.name for node in nodes],
        "reached at": [_reached(node) for node in nodes],
        "device": [node.device for node in nodes],
        "ranks": [str(node.nproc_per_node) for node in nodes],
        "cpus": [f"{node.limits.cpus:g}" for node in nodes],
        "memory": [size(node.limits.memory_mib) for node in nodes],
        "labels": [" ".join(f"{key}={value}" for key, value in node.labels.items()) for node in nodes],
    }
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    for title in shown:
        table.add_column(title, justify="right" if title in ("#", "cpus", "memory") else "left", overflow="fold")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    return table


def node_table(node: NodeSpec) -> Table:
    """Every key of one node, the defaults filled in."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in node.model_dump(exclude={"limits", "labels"}).items():
        table.add_row(key, Text("-" if value is None else str(value)))
    table.add_row("labels", Text(" ".join(f"{key}={value}" for key, value in node.labels.items()) or "-"))
    for key, text in limits(node).items():
        table.add_row(f"limits.{key}", text)
    return table


def _reached(node: NodeSpec) -> str:
    if node.connection == "local":
        return f"{node.address} (this computer)"
    user = f"{node.user}@" if node.user else ""
    port = f":{node.port}" if node.port != 22 else ""
    jump = f" via {node.jump}" if node.jump else ""
    return f"{user}{node.address}{port}{jump}"


def limits(node: NodeSpec) -> dict[str, str]:
    """Under the names of the file."""
    own = node.limits
    return {
        "cpus": f"{own.cpus:g}",
        "memory_reservation": size(own.memory_reservation_mib),
        "memory": size(own.memory_mib),
        "shm": size(own.shm_mib),
    }


def size(mib: int) -> str:
    """As the file writes it."""
    return f"{mib // 1024}g" if mib % 1024 == 0 else f"{mib}m"
