"""Table of facts of a Kubernetes custom resource definition, from its file: python scripts/crd_facts.py FILE …

The fields with their types, required ones, enumerations, patterns and bounds; no descriptions. It is a subset of JSON
Schema, closed: a field that is not in it does not exist. Objects that are large or occur again are definitions, one a
line.
`rules` names the fields with rules in CEL that hold for a new object, each with a digest of its text: these are written
in Python (tests/jobset_api.py), and a test compares the digests.

python scripts/crd_facts.py jobset.x-k8s.io_jobsets.yaml --version v1alpha2 --source kubernetes-sigs/jobset \\
    --commit 08dfbdfd682714a9ab929633eca8dc95315187e7 --licence Apache-2.0 \\
    > tests/cases/export/jobset.schema.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KEYWORDS = (
    "type",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "required",
)
INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "namespace": {"type": "string"}, "labels": TEXTS, "annotations": TEXTS,
    },
    "required": ["name"],
}  # fmt: skip
"""Fields of an object's own metadata that one writes; a definition leaves them to the API server."""
SMALLEST = 120
"""Characters of a subtree that becomes a definition if it occurs again."""
FIELDS = 5
"""Fields of an object that becomes a definition in any case, so that lines stay short."""


def facts_of(definition: dict[str, Any], version: str) -> dict[str, Any]:
    """Kind, version, closed schema and rules. KeyError: the definition lacks the version."""
    spec = definition["spec"]
    versions = {one["name"]: one["schema"]["openAPIV3Schema"] for one in spec["versions"]}
    found = versions[version]
    found["properties"].pop("status", None)
    schema = _closed(found)
    kind, api = spec["names"]["kind"], f"{spec['group']}/{version}"
    schema["properties"] |= {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": METADATA}
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return {"kind": kind, "apiVersion": api, "rules": dict(_rules(found, "")), **_shared(schema)}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The facts of one field and of those below it."""
    facts = {key: schema[key] for key in KEYWORDS if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        facts = {"type": ["integer", "string"]} | {key: facts[key] for key in ("pattern",) if key in facts}
    if schema.get("format") == "int32":
        facts = {**INT32, **facts}
    if properties := schema.get("properties"):
        facts["properties"] = {name: _closed(properties[name]) for name in sorted(properties)}
        facts["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        facts["additionalProperties"] = _closed(schema["additionalProperties"])
    elif facts.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        facts["additionalProperties"] = False
    if "items" in schema:
        facts["items"] = _closed(schema["items"])
    if keys := schema.get("x-kubernetes-list-map-keys"):
        facts["uniqueBy"] = keys
    return facts


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, list[str]]]:
    """Fields with rules that hold for a new object; one with `oldSelf` is for a change of it."""
    texts = [rule["rule"] for rule in schema.get("x-kubernetes-validations", []) if "oldSelf" not in rule["rule"]]
    if texts:
        yield path or ".", [hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts]
    for name, field in sorted(schema.get("properties", {}).items()):
        yield from _rules(field, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _rules(schema["additionalProperties"], f"{path}{{}}")


def _shared(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with references to definitions for the subtrees that occur more than once."""
    counts = Counter[str]()
    names: dict[str, str] = {}

    def text(part: Any) -> str:
        return json.dumps(part, sort_keys=True)

    def count(part: dict[str, Any], name: str) -> None:
        counts[text(part)] += 1
        repeated = counts[text(part)] > 1 and len(text(part)) >= SMALLEST
        if (repeated or len(part.get("properties", ())) >= FIELDS) and text(part) not in names and part is not schema:
            known = sum(1 for one in names.values() if one.rstrip("0123456789") == name)
            names[text(part)] = name + (str(known + 1) if known else "")
        if counts[text(part)] > 1:
            return
        for inner, field in part.get("properties", {}).items():
            count(field, inner)
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict):
                count(part[key], name)

    definitions: dict[str, Any] = {}

    def refer(part: dict[str, Any]) -> dict[str, Any]:
        name = names.get(text(part))
        if name is None:
            return inside(part)
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = inside(part)
        return {"$ref": f"#/$defs/{name}"}

    def inside(part: dict[str, Any]) -> dict[str, Any]:
        changed = dict(part)
        if "properties" in part:
            changed["properties"] = {name: refer(field) for name, field in part["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict):
                changed[key] = refer(part[key])
        return changed

    count(schema, "root")
    root = inside(schema)
    return {"$defs": dict(sorted(definitions.items())), **root}


def written(facts: dict[str, Any], header: dict[str, str]) -> str:
    """JSON with one definition, and one field of the object, a line."""

    def lines(values: dict[str, Any], indent: str) -> str:
        inner = (f"{indent} {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"

    whole = {**header, **facts}
    nested = ("$defs", "properties", "rules")
    fields = (f' "{key}": {lines(value, " ") if key in nested else json.dumps(value)}' for key, value in whole.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    for name in ("version", "source", "commit", "licence"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    definition = next(one for one in yaml.safe_load_all(given.file.read_text("utf-8")) if one)
    header = {
        "about": "facts of a custom resource definition, made by scripts/crd_facts.py",
        "source": given.source, "file": given.file.name, "commit": given.commit, "licence": given.licence,
    }  # fmt: skip
    sys.stdout.write(written(facts_of(definition, given.version), header))
