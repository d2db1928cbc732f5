"""The lines that the orchestrator reads."""

from __future__ import annotations

import io
import json
from pathlib import Path

from contract.events import GroupJoined, SampleWritten, TrainingDone
from trainer.config import RankInfo
from trainer.engine.reporting.events import Events


def test_an_event_is_one_line_with_its_head() -> None:
    out = io.StringIO()
    Events(RankInfo(rank=2, world_size=5, node="beta", events=True), out, clock=lambda: 12.5).emit(
        SampleWritten(text="a\nñ")
    )
    (line,) = out.getvalue().splitlines()
    assert json.loads(line.removeprefix("@orch ")) == {
        "event": "sample", "t": 12.5, "rank": 2, "node": "beta", "text": "a\nñ",
    }  # fmt: skip


def test_without_an_orchestrator_there_are_no_events() -> None:
    out = io.StringIO()
    events = Events(RankInfo(), out)
    events.emit(GroupJoined())
    events.say("hola")
    assert out.getvalue() == "hola\n"


def test_only_rank_0_talks_but_every_rank_tells_its_failure() -> None:
    out, err = io.StringIO(), io.StringIO()
    events = Events(RankInfo(rank=1, world_size=2, node="beta", events=True), out, err, clock=lambda: 0.0)
    events.say("hola")
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        events.failed(error)
    event = json.loads(out.getvalue().removeprefix("@orch "))
    assert (event["event"], event["error"], event["message"]) == ("failed", "ValueError", "no such thing")
    assert Path(__file__).name in event["frame"]
    assert err.getvalue() == "rank 1 of 2 (beta): ValueError: no such thing\n"


def test_nan_is_null() -> None:
    out = io.StringIO()
    Events(RankInfo(events=True), out).emit(TrainingDone(loss=float("nan")))
    assert json.loads(out.getvalue().removeprefix("@orch "))["loss"] is None
