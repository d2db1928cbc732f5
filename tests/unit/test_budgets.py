"""Budgets: what may shrink and may not grow without a decision, which is a change of a figure here."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.code_measures import lines_of
from tests.unit.programs import program_of
from trainer.config import TrainOptions
from trainer.workloads import WORKLOADS, train_parser

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
LINES = {
    "contract": 5_300,  # the target: 2,900
    "orch_hooks": 300,
    "orchestrator": 58_000,  # the target: 40,900
    "trainer": 28_100,  # the target: 20,600
    "tests": 76_700,  # the target: 50,000
    "benchmarks": 12_400,  # the target: 8,000
}
"""Lines of a package, rounded up to hundreds. One that has fallen by a thousand gets the smaller budget."""
LAUNCH_OPTIONS = 38
TRAIN_OPTIONS = {"gpt2": 73, "vision": 83, "text": 77, "traces-lstm": 69, "traces-gnn": 70, "custom": 64}

MEASURED = {
    "amp": "| HF Trainer tuned: bfloat16",
    "precision": "| ours, not compiled | 313",
    "compile": "| **blocks and loss compiled**",
    "sync": "| auto (selected int8)",
    "checkpoint_async": "| **gpt2, 124m** | 1,416 MiB | **asynchronously",
    "sdpa": "| whole, torch's own order of attention kernels",
}
"""The row of docs/benchmarks.md that supports an option which is on by default, by its beginning."""
NOT_MEASURED = {
    "resume": "not for speed: a run that is started again must not lose its steps",
    "backend": "not for speed: NCCL where every rank has a GPU, and gloo is what is left elsewhere",
    "shares": "a paragraph, not a row: 94.6 % of the sum of speeds of machines of 1 : 4 : 30",
    "num_workers": "a paragraph, not a row: 0 is best on two cores unless loading takes half of a step",
    "tf32": "never measured by itself",
    "static_graph": "never measured by itself",
}
"""Options that are on by default without a row. This list may only shrink."""


def test_no_package_exceeds_its_budget_of_lines() -> None:
    assert {name: lines for name, most in LINES.items() if (lines := lines_of(ROOT, name)) > most} == {}


def test_a_budget_follows_a_package_that_shrinks() -> None:
    spare = {name: most - lines_of(ROOT, name) for name, most in LINES.items()}
    assert {name: lines for name, lines in spare.items() if lines >= 1_000} == {}, "write the smaller figure"


def test_commands_have_no_more_options_than_today() -> None:
    """Counted as the parsers have them: an option is one with its opposite and with its other names."""
    launch = program_of("launch").commands["launch"]
    assert len([one for one in launch.params if one.param_type_name == "option"]) == LAUNCH_OPTIONS
    parsers = {name: train_parser(name, argparse.ArgumentParser) for name in WORKLOADS}
    counts = {name: len([one for one in each._actions if one.option_strings]) for name, each in parsers.items()}
    assert counts == TRAIN_OPTIONS, "fewer: write the smaller figure"


def test_what_is_on_by_default_has_a_measured_row() -> None:
    """An option is on by default if its value without being asked for is True, or `auto`: the trainer chooses."""
    on = {one.name for one in fields(TrainOptions) if one.default is True or one.default == "auto"}
    assert on == MEASURED.keys() | NOT_MEASURED.keys()
    assert not MEASURED.keys() & NOT_MEASURED.keys(), "a row has been added: remove the exception"
    rows = [line for line in (ROOT / "docs/benchmarks.md").read_text("utf-8").splitlines() if line.startswith("|")]
    assert [name for name, row in MEASURED.items() if not any(line.startswith(row) for line in rows)] == []
