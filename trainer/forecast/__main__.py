"""`python -m trainer.forecast`: a measurement and a question as JSON on stdin, the plan as JSON on stdout.

    {"measured": {…}, "question": {"sync": "auto", "among": ["alpha", "beta"], "samples": 100000}}

Needs Python alone, no package: a controller without torch asks so. Exit code 2, with a sentence on stderr, where the
question or the measurement is none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from trainer.errors import TrainerError, UsageError
from trainer.forecast.kept import from_values
from trainer.forecast.plan import Question, plan


def main() -> int:
    try:
        print(json.dumps(answer(_read())))
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Plan`. UsageError: `asked` is no question that can be answered."""
    question = asked.get("question", {})
    unknown = set(question) - {field.name for field in fields(Question)}
    if "measured" not in asked or unknown:
        raise UsageError(f"expected `measured` and `question`; unknown: {', '.join(sorted(unknown)) or 'nothing'}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in question.items()
    }
    return asdict(plan(from_values(asked["measured"]), Question(**values)))


def _read() -> Mapping[str, Any]:
    try:
        asked = json.load(sys.stdin)
    except ValueError as error:
        raise UsageError(f"stdin holds no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise UsageError("stdin holds JSON, but no object")
    return asked


if __name__ == "__main__":
    sys.exit(main())
