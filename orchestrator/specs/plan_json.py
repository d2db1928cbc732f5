"""The plan as JSON: what `--json` prints, and what every node keeps in the folder of the run.

Values of variables whose name says that they are secret are left out: a plan is read by more than its run.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.secret import redacted


def to_data(plan: Plan) -> dict[str, Any]:
    """Plain dictionaries and lists; without `secrets` where a run has none."""
    data: dict[str, Any] = redacted(dataclasses.asdict(plan))
    return {key: value for key, value in data.items() if key != "secrets" or value}


def to_json(plan: Plan) -> str:
    return json.dumps(to_data(plan), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, where: str) -> Plan:
    """The plan of a file; `where` names it in the error."""
    try:
        plan = TypeAdapter(Plan).validate_json(text)  # made here: it takes 70 ms, and a launch reads no plan
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ConfigError(f"{where} is not a plan of this version", problems=problems) from error
    if not re.fullmatch(RUN_ID, plan.run_id):
        raise ConfigError(f"{where} is not a plan of this version", problems=[f"run_id: {plan.run_id!r} is no id"])
    return plan
