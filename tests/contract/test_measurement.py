"""Options that do not change the speed of a training, on both sides."""

from __future__ import annotations

import pytest

from orchestrator.plan.global_batch import ACCUMULATION, STEP
from orchestrator.specs.measurement import SPEED_NEUTRAL, SPEED_NEUTRAL_FLAGS
from trainer import cli
from trainer.workloads import WORKLOADS, train_parser


@pytest.mark.parametrize("workload", WORKLOADS)
def test_options_that_do_not_matter_are_the_trainers_with_a_value_each(workload: str) -> None:
    taking = {
        option: action.nargs is None
        for action in train_parser(workload, cli.Parser)._actions
        for option in action.option_strings
    }
    assert {name for name in SPEED_NEUTRAL if not taking.get(name)} == set()
    assert {name for name in SPEED_NEUTRAL_FLAGS if taking.get(name, True)} - {"--from-scratch", "--forecast"} == set()
    assert set(STEP) | set(ACCUMULATION) | SPEED_NEUTRAL_FLAGS <= set(taking)
