"""The checks before a commit are those with which scripts/test begins, and both ends of the Pythons are checked."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.unit.test_constraints import PYTHONS

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "scripts/test").read_text("utf-8")


def first_checks() -> list[str]:
    """Lines of scripts/test from the first linter to the next empty line, without comments."""
    (block,) = re.findall(r"^(\.venv/bin/ruff check .*?)\n\n", SCRIPT, re.M | re.S)
    return [line.partition(" # ")[0].strip() for line in block.splitlines()]


def test_hooks_run_what_the_whole_run_begins_with() -> None:
    (own,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert own["repo"] == "local", "a hook of another repository is downloaded"
    entries = [shlex.split(hook["entry"]) for hook in own["hooks"]]
    run = [words[2] if words[:2] == ["sh", "-c"] else shlex.join(words) for words in entries]  # its files are a pattern
    assert run == first_checks()
    assert {(hook["language"], hook["pass_filenames"], hook["always_run"]) for hook in own["hooks"]} == {
        ("system", False, True)
    }


def test_the_lowest_and_the_highest_python_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lowest = settings["project"]["requires-python"].removeprefix(">=")
    assert (settings["tool"]["mypy"]["python_version"], settings["tool"]["ruff"]["target-version"]) == (
        lowest,
        f"py{lowest.replace('.', '')}",
    )
    (newest,) = re.findall(r"^NEWEST=(\d+)$", (ROOT / "scripts/environment.sh").read_text("utf-8"), re.M)
    assert '.venv/bin/mypy --python-version "3.$NEWEST"' in SCRIPT
    assert f".venv/bin/ruff check --target-version py3{newest} " in SCRIPT
    assert (PYTHONS[0], PYTHONS[-1]) == (lowest, f"3.{newest}")
