"""The first view of the page: the place of a run, whether anything is wrong, the last lines of all nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contract.events import OutputProgress
from orchestrator.checks.output_progress import output_share
from orchestrator.state.phase import Phase
from orchestrator.state.run_state import TailLine
from orchestrator.watch.fleet_view import LAST_LINES, FleetView, last_lines, now_view
from orchestrator.watch.views import NodeView
from tests.unit.test_monitor_view import SLOW, run

FIGURES = {"step": 5, "final_step": 10}
ALPHA = NodeView(name="alpha", state="running", node_rank=0, answered_s=0.1)
BETA = replace(ALPHA, name="beta", node_rank=1)
SILENT = replace(BETA, silent=True, answered_s=None, problem="no route")


def shown(**changes: Any) -> FleetView:
    return FleetView(**{"at": 0.0, "run": run(FIGURES), "looked": True, "nodes": (ALPHA, BETA), **changes})


@pytest.mark.parametrize(
    ("view", "severity", "lines", "fine"),
    [
        (shown(), "ok", [], "Both nodes answer; nothing is wrong."),
        (shown(run=None, nodes=(ALPHA,)), "ok", [], "The node answers; nothing is wrong."),
        (shown(nodes=()), "ok", [], ""),
        (shown(nodes=(ALPHA, replace(BETA, answered_s=None))), "info", ["no answer yet from beta"], ""),
        (shown(run=run(severity="warning", conditions=(SLOW,))), "warning", [SLOW.text], ""),
        (shown(nodes=(ALPHA, SILENT)), "warning", ["beta does not answer this computer: no route"], ""),
        (
            shown(run=run(phase=Phase.FAILED, severity="error", reason="rank 1"), nodes=(SILENT,)),
            "error",
            ["run gpt2-a3f9 failed: rank 1", "beta does not answer this computer: no route"],
            "",
        ),
    ],
)
def test_health_names_what_is_wrong_the_worst_first(
    view: FleetView, severity: str, lines: list[str], fine: str
) -> None:
    found = now_view(view, lambda _name: [])["health"]
    assert (found["severity"], [f"{one['about']} {one['text']}".strip() for one in found["lines"]]) == (severity, lines)
    assert found["fine"] == fine


@pytest.mark.parametrize(
    ("figures", "place"),
    [
        (FIGURES, "step 5 of 10"),
        ({}, ""),
        (
            {"output": "epoch 3/10 · step 120/400 · loss 2.31 · 12 min left   (read from its output)"},
            "epoch 3/10 · step 120/400 · from its output",
        ),
        ({"optimizer_steps": 1204, "steps_per_s": 3.1}, "1,204 optimizer steps · 3.1/s"),
        (
            {"output": "epoch 3/10 · loss 2.31   (read from its output)", "optimizer_steps": 7},
            "epoch 3/10 · from its output · 7 optimizer steps",
        ),
    ],
)
def test_the_place_of_a_run(figures: dict[str, Any], place: str) -> None:
    assert now_view(shown(run=run(figures)), lambda _name: [])["run"]["place"] == place


@pytest.mark.parametrize(
    ("event", "share"),
    [
        (OutputProgress(step=30, steps=120), 0.25),
        (OutputProgress(epoch=3, epochs=4, step=1, steps=2), 0.625),
        (OutputProgress(epoch=1.5, epochs=3), 0.5),
        (OutputProgress(epoch=0, epochs=3, step=1, steps=2), 0.0),
        (OutputProgress(epoch=9, epochs=3), 1.0),
        (OutputProgress(epoch=3), None),
        (OutputProgress(step=3), None),
    ],
)
def test_the_part_of_a_training_that_its_output_says_is_done(event: OutputProgress, share: float | None) -> None:
    assert output_share(event) == share


def test_the_newest_lines_of_all_nodes_in_order_of_time() -> None:
    def tail(name: str) -> list[TailLine]:
        rank = int(name == "beta")
        return [
            TailLine(number=n, at=0.0, time=f"{2 * n + rank:04d}", rank=rank, text=str(n or " ")) for n in range(50)
        ]

    found = last_lines(("alpha", "beta"), tail)
    assert len(found) == LAST_LINES
    assert [(one["time"], one["node"], one["rank"]) for one in found[-2:]] == [
        ("0098", "alpha", 0), ("0099", "beta", 1)
    ]  # fmt: skip
    assert last_lines((), tail) == []
