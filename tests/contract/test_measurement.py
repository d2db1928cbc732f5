"""What the trainer measures, the orchestrator keeps and shows, and asks the trainer about again."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from orchestrator.cli.launching.auto_nodes import ACCUMULATION, STEP
from orchestrator.specs.capacity import Effect, LargerStep, Prospect, Way, read_prospect
from orchestrator.specs.measurement import NO_MATTER, NO_MATTER_FLAGS, Measurement, read_measurement
from tests.trainer.forecasts import measured, node
from trainer import cli
from trainer.forecast import plan as trainers
from trainer.forecast.__main__ import answer
from trainer.forecast.kept import as_values, from_values
from trainer.forecast.rows import Row
from trainer.workloads import WORKLOADS, train_parser

MEASURED = measured([node(0), node(1), node(2, sample_s=0.05)], samples_per_step=60)


def kept() -> Measurement:
    values = {"time": "t", "project": "orch", "nodes": ["alpha", "beta", "gamma"], "command": ["gpt2"]}
    found = read_measurement({**values, "measured": json.loads(json.dumps(as_values(MEASURED)))})
    assert found is not None
    return found


def test_what_is_measured_is_understood_and_comes_back_whole() -> None:
    assert from_values(json.loads(json.dumps(asdict(kept())))["measured"]) == MEASURED
    figures = kept().figures
    assert figures.names == ("alpha", "beta", "gamma")
    assert [each.sample_s for each in figures.nodes] == [each.sample_s for each in MEASURED.nodes]


def test_what_is_reckoned_is_understood() -> None:
    told = answer({"measured": kept().measured, "question": {"sync": "auto", "among": ["alpha", "beta"]}})
    prospect = read_prospect(json.loads(json.dumps(told)))
    assert prospect is not None
    assert prospect.machines(kept().nodes) == ("alpha", "beta")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(trainers.Plan, Prospect), (trainers.Member, Effect), (trainers.Larger, LargerStep), (Row, Way)],
)
def test_both_halves_name_it_alike(theirs: type, ours: type) -> None:
    """The orchestrator may read less, never what is not there."""
    assert {field.name for field in fields(ours)} <= {field.name for field in fields(theirs)}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_options_that_do_not_matter_are_the_trainers_with_a_value_each(workload: str) -> None:
    taking = {
        option: action.nargs is None
        for action in train_parser(workload, cli.Parser)._actions
        for option in action.option_strings
    }
    assert {name for name in NO_MATTER if not taking.get(name)} == set()
    assert {name for name in NO_MATTER_FLAGS if taking.get(name, True)} - {"--from-scratch", "--forecast"} == set()
    assert set(STEP) | set(ACCUMULATION) | NO_MATTER_FLAGS <= set(taking)
