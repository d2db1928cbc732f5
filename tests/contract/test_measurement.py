"""Options that do not change the speed of a training, on both sides."""

from __future__ import annotations

import argparse

import pytest

from contract.cost_model.measurement import SPEED_NEUTRAL, SPEED_NEUTRAL_FLAGS
from orchestrator.specs.program import ACCUMULATION, STEP
from trainer import cli
from trainer.option_layers import add_train_options
from trainer.workloads import WORKLOADS, train_parser

_SPEED_RELEVANT = """
    batch-size micro-batch-size grad-accum gradient-accumulation-steps global-batch-size optimizer optimizer-state
    precision amp use-amp
    no-amp no-use-amp tf32 no-tf32 sdpa fused no-fused compile use-compile no-compile cuda-graphs no-cuda-graphs
    static-graph no-static-graph num-workers deterministic no-deterministic profile config
    sync-codec sync-every sync-warmup sync-fragments sync-delay sync-rank sync-density
"""
SPEED_RELEVANT = {f"--{name}" for name in _SPEED_RELEVANT.split()}


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


def test_each_option_of_every_workload_is_declared_to_change_the_speed_or_not() -> None:
    """A workload's own options count as changing it."""
    parser = argparse.ArgumentParser(add_help=False)
    add_train_options(parser)
    declared = {option for action in parser._actions for option in action.option_strings}
    neutral = SPEED_NEUTRAL | SPEED_NEUTRAL_FLAGS
    assert neutral & SPEED_RELEVANT == set()
    assert neutral | SPEED_RELEVANT == declared
