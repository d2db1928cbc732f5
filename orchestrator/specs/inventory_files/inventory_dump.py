"""An inventory as YAML that `parse_inventory` reads back: only what differs from the defaults is written."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from orchestrator.specs.inventory import Inventory, Limits, NodeSpec


def dump_inventory(inventory: Inventory, *, header: str = "") -> str:
    """The whole file; `header` is comment lines for its beginning."""
    document = {
        "project": inventory.project,
        "master_port": inventory.master_port,
        "nodes": {node.name: _node(node) for node in inventory.nodes},
    }
    return dump_document(document, header=header)


def dump_document(document: Mapping[str, Any], *, header: str = "") -> str:
    """Plain data as block-style YAML."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 4096  # a long path stays on its line
    yaml.allow_unicode = True
    yaml.dump(document, text)
    return header + text.getvalue()


def _node(node: NodeSpec) -> dict[str, Any]:
    values: dict[str, Any] = node.model_dump(exclude={"name", "limits"}, exclude_defaults=True)
    limits = _limits(node.limits)
    return {**values, **({"limits": limits} if limits else {})}


def _limits(limits: Limits) -> dict[str, Any]:
    """Under the names of the file, sizes with their unit."""
    values = limits.model_dump(by_alias=True, exclude_defaults=True)
    return {key: value if key == "cpus" else f"{value}m" for key, value in values.items()}
