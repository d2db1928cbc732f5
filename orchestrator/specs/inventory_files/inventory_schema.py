"""JSON Schema of `inventory.yaml`, for editors: completion, descriptions and red lines while typing."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.specs.cluster import OPTION_VALUE, OPTIONS, ClusterSpec
from orchestrator.specs.inventory import Inventory, NodeSpec
from orchestrator.specs.inventory_types import HOST, NAME

_RANGED_NAME = r"^[a-z0-9._-]*(\[[0-9, -]+\][a-z0-9._-]*)+$"
_RANGED_HOST = r"^[A-Za-z0-9._-]*(\[[0-9, -]+\][A-Za-z0-9._-]*)+$"


def inventory_schema() -> dict[str, Any]:
    """The schema of the file: that of the models, with nodes under their names and defaults beside them."""
    whole = Inventory.model_json_schema(by_alias=True)
    node = NodeSpec.model_json_schema(by_alias=True)
    limits = node["$defs"]["Limits"]["properties"]
    inner = {name: whole["$defs"][name] for name in ("ImageSpec", "HookSpec")}
    keys = {key: value for key, value in node["properties"].items() if key != "name"}
    (label,) = keys["labels"]["patternProperties"].values()
    label["type"] = ["string", "number", "boolean"]  # `rack: 03` is read as it is written
    keys["labels"]["additionalProperties"] = False
    keys["address"]["pattern"] = f"{HOST}|{_RANGED_HOST}"
    cluster = _cluster_keys()
    one = {"type": "object", "additionalProperties": False, "properties": keys}
    own_defaults = {key: value for key, value in keys.items() if key != "address"}
    for described in (
        *keys.values(), *cluster.values(), *limits.values(), node["$defs"]["Limits"],
        *whole["properties"].values(), *inner.values(),
        *(key for one in inner.values() for key in one["properties"].values()),
    ):  # fmt: skip
        described.pop("title", None)  # pydantic's, which say the key again
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "inventory.yaml of orch",
        "description": "The machines and how to reach them.",
        "type": "object",
        "additionalProperties": False,
        "anyOf": [{"required": ["nodes"]}, {"required": ["clusters"]}],
        "properties": {
            "project": whole["properties"]["project"],
            "master_port": whole["properties"]["master_port"],
            "image": whole["properties"]["image"],
            "hooks": whole["properties"]["hooks"],
            "defaults": {
                **one,
                "properties": own_defaults,
                "description": "for every node; a node's own key wins, labels and limits merge key by key",
            },
            "nodes": {
                "type": "object",
                "description": "name of each machine and its keys, in the order of ranks",
                "minProperties": 1,
                "propertyNames": {"pattern": f"{NAME}|{_RANGED_NAME}", "not": {"pattern": "^[0-9]+$"}},
                "additionalProperties": {**one, "required": ["address"], "description": "one machine"},
            },
            "clusters": _clusters(cluster),
        },
        "$defs": {**node["$defs"], **inner},
    }


def _cluster_keys() -> dict[str, Any]:
    """The keys of a cluster, as editors are to complete and check them."""
    cluster = ClusterSpec.model_json_schema(by_alias=True)["properties"]
    cluster = {key: value for key, value in cluster.items() if key not in ("name", "project")}
    cluster["time"]["anyOf"][0]["type"] = ["string", "integer"]  # minutes
    cluster["options"] |= {
        "additionalProperties": False,
        "properties": {name: {"type": ["string", "integer"], "pattern": OPTION_VALUE} for name in OPTIONS},
    }
    return cluster


def _clusters(keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "name of each cluster with a scheduler and its keys, for `orch launch --on`",
        "minProperties": 1,
        "propertyNames": {"pattern": NAME, "not": {"pattern": "^[0-9]+$"}},
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "required": ["login", "workspace"],
            "properties": keys,
            "description": "one cluster",
        },
    }


def schema_text() -> str:
    """The schema as `orch inventory schema` prints it."""
    return json.dumps(inventory_schema(), indent=2, ensure_ascii=False) + "\n"
