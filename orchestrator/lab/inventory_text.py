"""The inventory that every command takes while the lab is up. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.lab.state import USER, Lab
from orchestrator.specs.inventory import Limits
from orchestrator.specs.inventory_files.inventory_dump import dump_document

_HEAD = """\
# Written by `orch lab up`; removed by `orch lab down`.
"""


def inventory_text(lab: Lab, limits: Limits, folder: Path) -> str:
    """`inventory.yaml` for this lab; `folder` holds its keys, and the workspaces of process nodes."""
    document = {
        "project": "lab",
        "defaults": {**_defaults(lab, folder), "limits": _limits(limits)},
        "nodes": {node.name: {"address": node.address, **_own(lab, node.name, folder)} for node in lab.nodes},
    }
    return dump_document(document, header=_HEAD)


def _defaults(lab: Lab, folder: Path) -> dict[str, Any]:
    if lab.engine == "process":
        return {"connection": "local", "engine": "process"}
    return {"user": USER, "identity": str(folder / "id_ed25519")}


def _own(lab: Lab, name: str, folder: Path) -> dict[str, str]:
    """Nodes that are processes share one file system: each gets a folder of its own in it."""
    return {"workspace": str(folder / "nodes" / name)} if lab.engine == "process" else {}


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "cpus": limits.cpus,
        "memory_reservation": f"{limits.memory_reservation_mib}m",
        "memory": f"{limits.memory_mib}m",
        "shm": f"{limits.shm_mib}m",
    }
