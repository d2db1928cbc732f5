"""Ending a run everywhere, and clearing away what ended runs left."""

from __future__ import annotations

import errno
import os

import pytest

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.stop import clean, stop_run
from orchestrator.specs.errors import EngineError
from orchestrator.specs.request import RunIdentity
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.lan import event

THREE = lan.NAMES[:3]


def running(here: lan.Lan, run_id: str = "r1") -> tuple[tuple[RunningContainer, ...], RunRecord]:
    identity = RunIdentity(run_id=run_id, user="ana", started_at="2026-01-02T15:04:05+00:00")
    return launch(here.nodes, lan.plan(tuple(here.nodes), identity)), RunRecord(run_id)


def test_all_are_asked_then_logs_are_saved_then_containers_go() -> None:
    here = lan.lan(*THREE, says=("[rank0]: hello", event("checkpoint", step=40, verified=True)), ends_with=None)
    _, record = running(here)
    steps: list[tuple[str, str]] = []

    done = stop_run(list(here.nodes.values()), record, timeout_s=75, on_step=lambda *step: steps.append(step))

    assert done.checkpoint_step == 40
    assert sorted(steps) == [(name, "stopped") for name in THREE]
    assert here.containers == {}
    assert len(list(record.lines())) == 6
    assert record.outcome() == ("stopped", "checkpoint of step 40")
    for name in THREE:
        calls = [call for call in here.nodes[name].engine.calls if call[0] in ("stop", "logs", "remove")]
        assert [call[0] for call in calls] == ["stop", "logs", "remove"]
        assert calls[0][-1] == "75"


@pytest.mark.parametrize(
    "says",
    [
        (),
        (event("checkpoint", step=40, verified=False),),
        (event("checkpoint", verified=True),),
        (event("step", step=40),),
    ],
)
def test_no_checkpoint_that_can_be_trusted(says: tuple[str, ...]) -> None:
    here = lan.lan(*THREE, says=says, ends_with=None)
    _, record = running(here)
    assert stop_run(list(here.nodes.values()), record, timeout_s=75).checkpoint_step is None
    assert record.outcome() == ("stopped", "no checkpoint")


def test_a_node_that_cannot_be_asked_keeps_its_container() -> None:
    here = lan.lan(*THREE, ends_with=None)
    _, record = running(here)
    here.nodes["beta"].engine.failures["stop"] = EngineError("no answer", node="beta")
    done = stop_run(list(here.nodes.values()), record, timeout_s=75)
    assert [outcome.error and outcome.error.node for outcome in done.outcomes] == [None, "beta", None]
    assert here.containers == {"beta": ["orch-run"]}


def test_a_disk_that_is_full_keeps_no_container_running(monkeypatch: pytest.MonkeyPatch) -> None:
    here = lan.lan(*THREE, says=(event("checkpoint", step=40, verified=True),), ends_with=None)
    _, record = running(here)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    places = dict.fromkeys(THREE, "/home/ana/orch")
    done = stop_run(list(here.nodes.values()), record, timeout_s=75, places=places)
    assert (done.not_recorded, done.checkpoint_step, done.left) == ("No space left on device", 40, {})
    assert here.containers == {}
    marks = [call for node in here.nodes.values() for call in node.calls if call[-1] == "stopped"]
    assert len(marks) == 3


def test_a_run_that_had_failed_stays_failed() -> None:
    """`orch stop` after the end clears its containers away; history is not rewritten."""
    here = lan.lan(*THREE, ends_with=1)
    _, record = running(here)
    record.save_outcome("failed", "exit code 1")
    stop_run(list(here.nodes.values()), record, timeout_s=75)
    assert record.outcome() == ("failed", "exit code 1")


def test_a_run_that_was_lost_is_stopped() -> None:
    here = lan.lan(*THREE, ends_with=None)
    _, record = running(here)
    record.save_outcome("lost", "")
    stop_run(list(here.nodes.values()), record, timeout_s=75)
    assert record.outcome() == ("stopped", "no checkpoint")


def test_clean_removes_what_ended_and_keeps_its_lines() -> None:
    here = lan.lan(*THREE, says=("[rank0]: bye",), ends_with=1)
    running(here, "ended")
    for name in THREE:
        here.nodes[name].engine.ends_with = None  # type: ignore[attr-defined]  # an Actor
    running(here, "goes-on")

    outcomes = clean(list(here.nodes.values()))

    assert [outcome.value().removed for outcome in outcomes] == [("ended",)] * 3
    assert here.containers == {name: ["orch-run"] for name in THREE}
    assert [line.text for line in RunRecord("ended").lines()] == ["bye"] * 3


def test_clean_of_one_run_alone() -> None:
    here = lan.lan("alpha")
    for run_id in ("one", "two"):
        running(here, run_id)
    assert clean(list(here.nodes.values()), run_id="one")[0].value().removed == ("one",)
    assert here.containers == {"alpha": ["orch-run"]}


def test_clean_of_a_run_that_is_only_on_record_leaves_one_with_a_longer_name() -> None:
    here = lan.lan("alpha")
    RunRecord("first-1a2b").save_plan(lan.plan(("alpha",)))
    running(here, "first2-3c4d")
    assert clean(list(here.nodes.values()), run_id="first")[0].value().removed == ()


def test_a_node_that_cannot_be_cleaned_is_an_outcome() -> None:
    here = lan.lan(*THREE)
    running(here)
    here.nodes["beta"].engine.failures["containers"] = EngineError("no answer", node="beta")
    outcomes = clean(list(here.nodes.values()))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
