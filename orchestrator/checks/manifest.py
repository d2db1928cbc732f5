"""Whether a Kubernetes manifest is one that its API server would take: closed-world types, then the rules of webhooks.

The types are facts of the custom resource definitions, pinned by commit (`manifest_facts`, made by
scripts/crd_facts.py). A field that they do not have is a problem, which an API server would drop silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, core_schema

from orchestrator.checks.manifest_rules import rules_of

KINDS = ("jobset",)
_QUANTITY = "an integer or a quantity, such as 500m or 4Gi"


@dataclass(frozen=True, kw_only=True)
class KindFacts:
    """A kind of object as its definition describes it."""

    source: str
    """Repository, file and commit of the definition."""
    api_version: str
    rules: Mapping[str, Sequence[str]]
    """Digests of the CEL rules that hold for a new object, by field."""
    schema: Mapping[str, Any]
    """JSON Schema, closed."""
    validator: SchemaValidator


@cache
def facts_of_kind(kind: str) -> KindFacts:
    """Facts of one of `KINDS`. KeyError: no such kind."""
    if kind not in KINDS:
        raise KeyError(kind)
    text = (files("orchestrator.checks") / "manifest_facts" / f"{kind}.json").read_text("utf-8")
    facts = json.loads(text)
    definitions = [{**_schema(part), "ref": name} for name, part in facts["$defs"].items()]
    whole = core_schema.definitions_schema(_schema(facts), definitions)  # type: ignore[arg-type]  # with their refs
    return KindFacts(
        source=f"{facts['source']}, {facts['file']} of {facts['commit'][:12]}",
        api_version=facts["apiVersion"],
        rules=facts["rules"],
        schema=facts,
        validator=SchemaValidator(whole),
    )


def manifest_problems(kind: str, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return every problem as `field: text`; rules are checked where the types are right. Empty: it is valid."""
    try:
        facts_of_kind(kind).validator.validate_python(manifest)
    except ValidationError as error:
        return tuple(f"{_path(one['loc'])}: {_plain(one['type'], one['msg'])}" for one in error.errors())
    return tuple(f"{path}: {text}" for path, text in rules_of(manifest))


def _plain(kind: str, text: str) -> str:
    texts = {"extra_forbidden": "no such field", "missing": "this field is required"}
    return texts.get(kind) or text[:1].lower() + text[1:]


def _schema(part: Mapping[str, Any]) -> core_schema.CoreSchema:
    """The validator's schema for a subtree of the facts."""
    if "$ref" in part:
        return core_schema.definition_reference_schema(part["$ref"].rpartition("/")[2])
    if "const" in part or "enum" in part:
        return core_schema.literal_schema([part["const"]] if "const" in part else part["enum"])
    kind = part["type"]
    if isinstance(kind, list):
        either: list[Any] = [core_schema.int_schema(strict=True), _text(part)]
        return core_schema.union_schema(either, custom_error_type="quantity", custom_error_message=_QUANTITY)
    if kind == "object":
        return _object(part)
    if kind == "array":
        items = core_schema.list_schema(
            _schema(part["items"]), strict=True, min_length=part.get("minItems"), max_length=part.get("maxItems")
        )
        if keys := part.get("uniqueBy"):
            return core_schema.no_info_after_validator_function(_unique_by(keys), items)
        return items
    if kind == "string":
        return _text(part)
    if kind == "integer":
        return core_schema.int_schema(strict=True, ge=part.get("minimum"), le=part.get("maximum"))
    return core_schema.bool_schema(strict=True) if kind == "boolean" else core_schema.float_schema(strict=True)


def _text(part: Mapping[str, Any]) -> core_schema.CoreSchema:
    return core_schema.str_schema(
        strict=True, pattern=part.get("pattern"), min_length=part.get("minLength"), max_length=part.get("maxLength")
    )


def _object(part: Mapping[str, Any]) -> core_schema.CoreSchema:
    if isinstance(part.get("additionalProperties"), dict):
        values = _schema(part["additionalProperties"])
        return core_schema.dict_schema(core_schema.str_schema(strict=True), values, strict=True)
    required = set(part.get("required", ()))
    fields = {
        name: core_schema.typed_dict_field(_schema(field), required=name in required)
        for name, field in part.get("properties", {}).items()
    }
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid" if fields else "allow", strict=True)


def _unique_by(keys: Sequence[str]) -> Any:
    """A check that no two elements of a list have the same values under these keys."""

    def check(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen = [tuple(item.get(key) for key in keys) for item in items]
        if double := next((one for index, one in enumerate(seen) if one in seen[:index]), None):
            named = f"{', '.join(keys)} {', '.join(map(str, double))}"
            raise PydanticCustomError("twice", "{named} occurs twice", {"named": named})
        return items

    return check


def _path(places: Sequence[int | str]) -> str:
    """Field path as Kubernetes writes it: `spec.replicatedJobs[0].name`."""
    return "".join(_steps(places)).lstrip(".") or "the object"


def _steps(places: Sequence[int | str]) -> Iterator[str]:
    for place in places:
        yield f"[{place}]" if isinstance(place, int) else f".{place}"
