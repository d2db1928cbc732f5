"""The inventory to people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.render.table import Column, Table
from orchestrator.specs.inventory import NodeSpec


def nodes_table(nodes: Sequence[NodeSpec], *, wide: bool = False) -> Table:
    """One line a node, in the order of ranks."""
    columns = (
        Column("#", 4, right=True), Column("node"), Column("reached at", 1), Column("device", 2), Column("ranks", 5),
        Column("cpus", 6, right=True), Column("memory", 3, right=True), Column("labels", 7, wraps=True),
        Column("engine", wide=True), Column("workspace", wide=True), Column("reserved", right=True, wide=True),
        Column("shm", right=True, wide=True),
    )  # fmt: skip
    rows = [
        (
            str(rank), node.name, _reached(node), node.device, str(node.nproc_per_node), own["cpus"],
            own["memory"], _labels(node), node.engine, node.workspace, own["memory_reservation"], own["shm"],
        )
        for rank, node in enumerate(nodes)
        for own in [limits(node)]
    ]  # fmt: skip
    return Table(columns=columns, rows=rows, wide=wide)


def node_table(node: NodeSpec) -> Table:
    """Every key of one node, the defaults filled in."""
    values = {key: "-" if value is None else str(value) for key, value in
              node.model_dump(exclude={"limits", "labels"}).items()}  # fmt: skip
    values["labels"] = _labels(node) or "-"
    values |= {f"limits.{key}": text for key, text in limits(node).items()}
    rows = [(Text(key, "bold"), value) for key, value in values.items()]
    return Table(columns=(Column(""), Column("", wraps=True)), rows=rows)


def _labels(node: NodeSpec) -> str:
    return " ".join(f"{key}={value}" for key, value in node.labels.items())


def _reached(node: NodeSpec) -> str:
    if node.connection == "local":
        return f"{node.address} (this computer)"
    user = f"{node.user}@" if node.user else ""
    port = f":{node.port}" if node.port != 22 else ""
    jump = f" via {node.jump}" if node.jump else ""
    return f"{user}{node.address}{port}{jump}"


def limits(node: NodeSpec) -> dict[str, str]:
    """List the limits under the names of the file; `auto` for a key that it leaves out."""
    own = node.limits
    return {
        "cpus": f"{own.cpus:g}" if own.cpus else "auto",
        "memory_reservation": _size(own.memory_reservation_mib),
        "memory": _size(own.memory_mib),
        "shm": _size(own.shm_mib),
    }


def _size(mib: int | None) -> str:
    """Format a size as the file writes it."""
    if mib is None:
        return "auto"
    return f"{mib // 1024}g" if mib % 1024 == 0 else f"{mib}m"
