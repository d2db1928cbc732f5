"""One reading of the values that people write, as YAML 1.2 has it: `1e-3` is a number, `no` and `22:22` are text.

PyYAML reads YAML 1.1, where `1e-3` is text, `no` is false and `22:22` is 1342.
"""

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
    """Safe, and of YAML 1.2's core schema."""


Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in RESOLVED.items():
    Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def _int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))


Loader.add_constructor("tag:yaml.org,2002:int", _int)
Loader.add_constructor("tag:yaml.org,2002:float", _float)


def load(text: str) -> Any:
    """A document. yaml.YAMLError: it is none."""
    return yaml.load(text, Loader)  # noqa: S506  # a SafeLoader


def scalar(text: str, wanted: str = "") -> Any:
    """A value given on the command line. `wanted`: the annotation of the argument that it is for. ValueError: the text
    is not of that type."""
    wanted = wanted.removeprefix("<class '").removesuffix("'>")
    if wanted == "str":
        return text
    if wanted in ("int", "float"):
        return {"int": int, "float": float}[wanted](text)
    try:
        found = load(text)
    except yaml.YAMLError:
        found = text
    if wanted == "bool" and not isinstance(found, bool):
        raise ValueError("expected true or false")
    return found
