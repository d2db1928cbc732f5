"""docs/faults.md: forty-one faults, each with tests that exist and are run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NO_TORCH

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text("utf-8")
ROWS = {
    int(cells[0]): cells
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \| .* \| .*tests/", line)
    for cells in [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]]
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
NAMED = {found for cells in ROWS.values() for found in TEST.findall(cells[5])}


def test_all_are_there() -> None:
    assert sorted(ROWS) == list(range(1, 42))


def test_each_names_what_is_seen_how_it_ends_and_what_stays() -> None:
    for number, cells in ROWS.items():
        assert len(cells) == 6, number
        _, fault, seen, code, saved, tests = cells
        assert len(fault) > 5, number
        assert len(seen) > 5, number
        assert saved, number
        assert re.fullmatch(r"–|\d+( / \d+)*", code), number
        assert TEST.sub("", tests).replace("<br>", "") == "", f"row {number} names something that is no test"
        assert TEST.findall(tests), number


def test_stand_ins_are_of_rows_that_are_there() -> None:
    lines = PAGE.partition("## Stand-ins for hardware")[2].splitlines()
    reported = {int(line.split("|")[1]) for line in lines if re.match(r"\| \d+ \|", line)}
    assert {10, 11, 12, 13} <= reported <= set(ROWS)


def test_every_test_exists() -> None:
    for file, name in NAMED:
        functions = {node.name for node in ast.parse((ROOT / file).read_text("utf-8")).body if hasattr(node, "name")}
        assert name in functions, f"{file}::{name}"


def test_every_test_is_collected() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    wanted = sorted(f"{file}::{name}" for file, name in NAMED)
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", *wanted)
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    collected = {line.partition("[")[0] for line in ran.stdout.splitlines() if "::" in line}
    assert collected == set(wanted)
