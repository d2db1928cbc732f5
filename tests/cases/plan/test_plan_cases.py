"""YAML in, plan out: what `orch launch --dry-run` prints, and its JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs import errors
from orchestrator.specs.plan_json import from_json, to_json
from tests.cases.plan.golden import CASES, lines_of, load, plan_of


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_plan(path: Path) -> None:
    case, inventory = load(path)
    if refused := case.get("refused"):
        with pytest.raises(getattr(errors, refused["error"])) as caught:
            plan_of(case, inventory)
        assert f"{caught.value}\n  → {caught.value.hint}" == refused["says"].rstrip("\n")
        return

    plan = plan_of(case, inventory)

    assert lines_of(plan, inventory) == path.with_suffix(".lines").read_text()
    if case.get("json"):
        expected = path.with_suffix(".json").read_text()
        assert to_json(plan) == expected
        assert from_json(expected, where=path.name) == plan


def test_no_expectation_is_left_over() -> None:
    """A golden file without its case would be compared with nothing."""
    folder = CASES[0].parent
    assert {path.stem for path in folder.iterdir()} == {path.stem for path in CASES}
