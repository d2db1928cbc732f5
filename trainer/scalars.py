"""YAML 1.2 for what users write. PyYAML reads YAML 1.1: `1e-3` is text, `no` is false and `22:22` is 1342."""

from __future__ import annotations

import re
from typing import Any

import yaml

RESOLVED = {
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}


class Loader(yaml.SafeLoader):
    """A safe loader with the core schema of YAML 1.2."""


Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in RESOLVED.items():
    Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
Loader.add_constructor(
    "tag:yaml.org,2002:int", lambda _, node: int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10)
)
Loader.add_constructor(
    "tag:yaml.org,2002:float",
    lambda _, node: float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan")),
)


def load(text: str) -> Any:
    """Read a document. yaml.YAMLError: it is not YAML."""
    return yaml.load(text, Loader)  # noqa: S506  # a SafeLoader


def scalar(text: str, wanted: str = "") -> Any:
    """Read a value of the command line. `wanted`: the annotation of its argument. ValueError: it is of another type."""
    wanted = wanted.removeprefix("<class '").removesuffix("'>")
    if wanted in ("str", "int", "float"):
        return {"str": str, "int": int, "float": float}[wanted](text)
    try:
        found = load(text)
    except yaml.YAMLError:
        found = text
    if wanted == "bool" and not isinstance(found, bool):
        raise ValueError("expected true or false")
    return found
