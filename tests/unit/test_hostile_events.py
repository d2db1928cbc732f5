"""Events that mean harm, or of a broken program: every command continues, and nothing of them steers a terminal."""

from __future__ import annotations

import json

import pytest

from contract.log_lines import EVENT_MARK
from tests import lan
from tests.lan import event
from tests.unit.conftest import THREE, Orch

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b2J tok"
WRONG = {"outcome": "user", "node": "beta", "rank": 1, "exit_code": 1}


def agent(kind: str, **values: object) -> str:
    """A line of a container's supervisor."""
    return EVENT_MARK + json.dumps({"event": kind, **values})


SAYS = (
    event("joined", samples_per_step="x", world_size="y"),
    event("checkpoint", verified=True, step="x"),
    event("checkpoint", verified=True, step=float("inf")),
    event("step", step="x", loss=2.0),
    event("checkpoint", verified=True, step=[]),
    event("step", step=5, loss=float("nan"), per_s=5.0, of_forecast="x"),
    event("step", step=5, t=1e308, ended_at="x"),
    event("step", step=5, t=1e308, ended_at=-1e308),
    event("step", step=6, loss=1.0, per_s=5.0, unit=ESCAPES, of_forecast=0.5),
    event("checkpoint", verified=True),
    event("forecast", **lan.forecast(rows=[7])),
    event("forecast", **lan.forecast(unit=ESCAPES, best_node=ESCAPES, warnings=[ESCAPES])),
    event("left_out", why=ESCAPES),
    event("left_out", why=7),
    event("failed", error="\ud800", message=ESCAPES, frame=7),
    agent("stalled", nodes=7, seconds=3),
    agent("stalled", nodes=[ESCAPES], seconds=3),
    agent("waiting", nodes=7, seconds=3),
    agent("stacks", seconds="x", ranks=[{"rank": "x", "frames": 7, "step": []}, 7]),
    agent("liveness", rule="idle", text=ESCAPES, ranks=[1], nodes=[ESCAPES], fix=ESCAPES, seconds="x"),
    agent("stacks", seconds=90, ranks=[{"rank": 1, "frames": [ESCAPES], "state": ESCAPES}]),
    agent("restarting", **{**WRONG, "restarts_left": "x", "rank": []}),
    agent("finished", **{**WRONG, "exit_code": 1e400, "rank": 1e30}),
    agent("finished", **{**WRONG, "reason": ESCAPES + "\nrun done"}),
    "[rank" + "9" * 5000 + "]: hi",
    "[rank0]: " + ESCAPES + " [bold red]x[/bold red] [/nope]",
    event("done", step="x" * 100_000),
)


@pytest.mark.parametrize("ends_with", [0, 1])
def test_every_command_continues(orch: Orch, ends_with: int) -> None:
    here = lan.lan(*THREE, says=SAYS, ends_with=ends_with)
    assert orch("launch", "--no-supervise", on=here).code in (0, 1)
    for words in (("logs",), ("logs", "--json"), ("why",), ("why", "--json"), ("status",), ("status", "--json"),
                  ("runs",), ("runs", "--json"), ("supervise",)):  # fmt: skip
        ran = orch(*words, on=here)
        assert [char for char in ran.out + ran.err if char in "\x07\x1b\x9b\ud800"] == [], words
        assert ran.code in (0, 1, 3), (words, ran.err)


def test_a_line_that_is_no_event_is_shown_as_it_is(orch: Orch) -> None:
    here = lan.lan(*THREE, says=(event("step", step="many"), event("step", step=1)))
    assert orch("launch", "--no-supervise", on=here).code == 0
    assert orch("logs", on=here).out == '[all 3 nodes] @orch {"event": "step", "rank": 0, "step": "many"}\n'
