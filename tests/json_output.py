"""JSON that commands write."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

import orchestrator.cli

SCHEMA = json.loads((Path(orchestrator.cli.__file__).parent / "output.schema.json").read_text())


@cache
def _validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def json_data(out: str) -> Any:
    """The data in the envelope of a command's `--json`, which the published schema describes."""
    envelope = json.loads(out)
    _validator().validate(envelope)
    return envelope["data"]
