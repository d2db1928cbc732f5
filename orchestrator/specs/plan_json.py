"""The plan as JSON: what `--json` prints, and what every node keeps in the folder of the run."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan


def to_data(plan: Plan) -> dict[str, Any]:
    """Plain dictionaries and lists."""
    return dataclasses.asdict(plan)


def to_json(plan: Plan) -> str:
    return json.dumps(to_data(plan), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, where: str) -> Plan:
    """The plan of a file; `where` names it in the error."""
    try:
        return TypeAdapter(Plan).validate_json(text)  # made here: it takes 70 ms, and a launch reads no plan
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ConfigError(f"{where} is not a plan of this version", problems=problems) from error
