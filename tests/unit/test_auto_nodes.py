"""`orch launch --nodes auto`: the team that the plan finds best, with the step that was planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.cost_model.measurement import read_measurement
from orchestrator.specs.measurement import SavedMeasurement
from orchestrator.store.measurements import keep, recall
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch
from tests.unit.measurements import COMMAND, RATE, measured

DONE = event("done", step=3)


def saved(command: tuple[str, ...] = COMMAND, link: float = RATE / 10) -> None:
    values = measured()
    values["nodes"][2] |= {"upload": link, "download": link}
    keep(
        SavedMeasurement(
            time="2026-01-02", project="orch", nodes=THREE, command=command, measured=read_measurement(values)
        )
    )


def dry_run(orch: Orch, *command: str) -> tuple[list[str], tuple[str, ...], str]:
    ran = orch("launch", "--nodes", "auto", "--dry-run", "--json", "--", *command, on=lan.lan(*THREE))
    assert ran.code == 0, ran.err
    plan = json_data(ran.out)
    return [part["node"] for part in plan["nodes"]], tuple(plan["command"]), ran.err


def test_the_best_team_with_the_step_of_all(orch: Orch) -> None:
    saved(link=RATE / 1000)
    nodes, command, message = dry_run(orch, *COMMAND)
    assert nodes == ["alpha", "beta"]
    assert command == (*COMMAND, "--global-batch-size", "60")
    assert "--nodes auto: alpha, beta (fp32): " in message
    assert "x alpha alone; measured 2026-01-02" in message
    assert "without gamma, which hurts: a step takes" in message


def test_all_where_all_help_and_then_nothing_is_added(orch: Orch) -> None:
    saved(link=RATE)
    nodes, command, message = dry_run(orch, *COMMAND, "--epochs", "3")
    assert (nodes, command) == (list(THREE), (*COMMAND, "--epochs", "3"))
    assert "without" not in message


@pytest.mark.parametrize("own", ["--global-batch-size=60", "--grad-accum=10"])
def test_a_step_that_was_given_stays_as_it_was_given(orch: Orch, own: str) -> None:
    saved((*COMMAND, own))
    nodes, command, message = dry_run(orch, *COMMAND, own)
    assert (nodes, command) == (["alpha", "beta"], (*COMMAND, own))
    assert ("--global-batch-size keeps them" in message) == (own == "--grad-accum=10")


def test_it_measures_first_where_nothing_is_saved(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("measured", **measured()), DONE))
    ran = orch("launch", "--nodes", "auto", "--yes", "--", *COMMAND, on=here)
    assert ran.code == 0, ran.err
    assert "was not measured yet; measuring now" in ran.err
    assert recall("orch", COMMAND, THREE) is not None
    assert sorted(here.containers) == ["alpha", "beta"]  # gamma's went with the measurement


def test_a_dry_run_starts_no_measurement(orch: Orch) -> None:
    here = lan.lan(*THREE)
    ran = orch("launch", "--nodes", "auto", "--dry-run", on=here)
    assert (ran.code, here.containers) == (3, {})
    assert "orch bench" in ran.err


@pytest.mark.parametrize("other", [("--resume", "r1"), ("--forecast",)])
def test_what_makes_no_sense_with_it_is_refused(orch: Orch, other: tuple[str, ...]) -> None:
    ran = orch("launch", "--nodes", "auto", *other, on=lan.lan(*THREE))
    assert ran.code == 2
    assert f"it does not go with {other[0]}" in ran.err


def test_a_script_of_ones_own_cannot_be_planned(orch: Orch) -> None:
    Path("train.py").write_text("import torch\n")
    ran = orch("launch", "--nodes", "auto", "--workdir", ".", "--", "python", "train.py", on=lan.lan(*THREE))
    assert ran.code == 2
    assert "is your own script" in ran.err
