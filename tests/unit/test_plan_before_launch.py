"""`orch plan`: computed from a saved measurement, without asking a node."""

from __future__ import annotations

import json

import pytest

from contract.cost_model.measurement import read_measurement
from orchestrator.specs.measurement import SavedMeasurement
from orchestrator.store.measurements import keep
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch
from tests.unit.measurements import COMMAND, measured

MEASUREMENT = SavedMeasurement(
    time="2026-01-02", project="orch", nodes=THREE, command=COMMAND, measured=read_measurement(measured())
)


def test_the_drawing(orch: Orch) -> None:
    keep(MEASUREMENT)
    ran = orch("plan", "--epochs", "3", "--", *COMMAND, on=lan.Lan())
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[:2] == [
        "a step of 60 samples, by number of nodes",
        "   nodes               sync     step  tokens/s  x alpha  exchange  done in  █ compute ░ exchange",
    ]
    assert [line.split()[0] for line in lines[2:5]] == ["alpha", "▶", "alpha,"]
    for line in lines[2:5]:
        assert "█" in line
    for head in ("by sync method", "each node: a step with and without it", "a larger step"):
        assert any(line.startswith(head) for line in lines)
    assert "int2 ?" in ran.out
    assert sum(line.startswith("enough") for line in lines) == 1
    assert "measured 2026-01-02 on alpha, beta, gamma" in ran.err


def test_for_programs_it_is_json(orch: Orch) -> None:
    keep(MEASUREMENT)
    found = json_data(orch("plan", "--steps", "100", "--json", "--", *COMMAND).out)
    assert found["chosen"]["nodes"] == ["alpha", "beta"]
    assert (found["samples"], found["samples_per_step"]) == (6000, 60)
    assert found["finish_s"] == pytest.approx(100 * found["chosen"]["step_s"])
    assert [len(row["nodes"]) for row in found["by_size"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "samples"),
    [
        (("--epochs", "0.5"), 3000),
        (("--samples", "77"), 77),
        (("--", *COMMAND, "--max-steps", "10"), 600),
        (("--", *COMMAND, "--epochs", "2"), 12000),
        (("--steps", "1", "--", *COMMAND, "--max-steps", "10"), 60),
        ((), None),
    ],
)
def test_how_long_it_is(orch: Orch, words: tuple[str, ...], samples: int | None) -> None:
    keep(MEASUREMENT)
    command = () if "--" in words else ("--", *COMMAND)
    assert json_data(orch("plan", "--json", *words, *command).out)["samples"] == samples


def test_a_rung_that_is_asked_for_and_fewer_nodes(orch: Orch) -> None:
    keep(MEASUREMENT)
    found = json_data(orch("plan", "--json", "--nodes", "beta,gamma", "--", *COMMAND, "--sync", "int8").out)
    assert {row["sync"] for row in found["by_size"]} == {"alone", "int8"}
    assert {name for row in found["rows"] for name in row["nodes"]} == {"beta", "gamma"}
    assert found["samples_per_step"] == 40  # two of three ranks, each with its batch
    same = ("--global-batch-size", "60")
    keep(SavedMeasurement(**{**vars(MEASUREMENT), "command": (*COMMAND, *same)}))
    data = json_data(orch("plan", "--json", "--nodes", "beta,gamma", "--", *COMMAND, *same).out)
    assert data["samples_per_step"] == 60


def test_a_missing_measurement_is_reported_with_the_line_that_makes_it(orch: Orch) -> None:
    ran = orch("plan", "--nodes", "2", "--", *COMMAND, "--epochs", "3")
    assert ran.code == 3
    assert "gpt2 --batch-size 2 was not measured yet on alpha, beta" in ran.err
    assert "→ orch bench --nodes 2 -- gpt2 --batch-size 2" in ran.err


def test_it_measures_on_request(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("measured", **measured()),))
    ran = orch("plan", "--measure", "--json", "--", *COMMAND, on=here)
    assert (ran.code, here.containers) == (0, {})
    assert json_data(ran.out)["chosen"]["nodes"] == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--steps", "1", "--epochs", "1"), 2, "give only one of --steps, --epochs and --samples"),
        (("--", *COMMAND, "--sync", "int7"), 2, "argument --sync: invalid choice: 'int7' (choose from "),
        (("--", "python", "train.py"), 2, "is your own script"),
    ],
)
def test_what_makes_no_sense(orch: Orch, words: tuple[str, ...], code: int, says: str) -> None:
    keep(MEASUREMENT)
    command = () if "--" in words else ("--", *COMMAND)
    ran = orch("plan", *words, *command)
    assert (ran.code, says in ran.err) == (code, True), ran.err


def test_an_incompatible_measurement_is_not_used(orch: Orch) -> None:
    file = keep(MEASUREMENT)
    saved = json.loads(file.read_text())
    file.write_text(json.dumps(saved | {"measured": measured(costs=[])}))
    ran = orch("plan", "--", *COMMAND)
    assert (ran.code, "was not measured yet" in ran.err) == (3, True)
