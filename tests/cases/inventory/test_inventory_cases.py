"""YAML in, problems out: every message that the validation of an inventory can give."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory

INVALID = sorted((Path(__file__).parent / "invalid").glob("*.yaml"))


@pytest.mark.parametrize("case", INVALID, ids=lambda path: path.stem)
def test_all_problems_are_named_at_once(case: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_inventory(case.read_bytes(), filename="inventory.yaml")
    assert list(caught.value.problems) == case.with_suffix(".problems").read_text().splitlines()
    assert caught.value.exit_code == 3
