"""The controller's folder of a run: what is kept, and what a crash leaves readable."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.load_state import recorded_history
from orchestrator.fleet.runs.one_supervisor import only_supervisor
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.nodes.fake import FakeEngine, FakeNode
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord, plan_name, recorded_runs
from tests import lan


def line_of(second: int, text: str = "hello", node: str = "alpha", node_rank: int = 0) -> RunLine:
    return RunLine(time=lan.moment(second), node=node, node_rank=node_rank, rank=node_rank, text=text)


def keep(record: RunRecord, *lines: RunLine) -> None:
    for line in lines:
        with record.open_log(line.node) as log:
            log.add(line)


def test_plan_and_outcome_are_saved() -> None:
    record, plan = RunRecord("r1"), lan.plan()
    assert (record.plan(), record.outcome()) == (None, None)
    record.save_plan(plan)
    record.save_outcome("failed", "exit code 3")
    assert (record.plan(), record.outcome()) == (plan, ("failed", "exit code 3"))


def test_a_new_attempt_has_no_outcome_yet() -> None:
    record = RunRecord("r1")
    record.save_outcome("failed", "exit code 3")
    record.save_plan(lan.plan())
    assert record.outcome() is None


@pytest.mark.parametrize("text", ["", '{"state": "fai', "[]", '{"kind": "end", "reason": "exit code 3"}'])
def test_an_outcome_cut_short_is_none(text: str) -> None:
    record = RunRecord("r1")
    record.save_plan(lan.plan())
    with (record.folder / "record.jsonl").open("a") as file:
        file.write(text)
    assert (record.plan(), record.outcome()) == (lan.plan(), None)


def test_lines_are_merged_in_order_of_time() -> None:
    record = RunRecord("r1")
    lines = [line_of(2), line_of(3, node="beta", node_rank=1), line_of(4)]
    keep(record, lines[2], lines[1], lines[0])
    assert list(record.lines()) == lines
    assert list(record.lines("alpha")) == [lines[0], lines[2]]
    assert (record.last_time("alpha"), record.last_time("gamma")) == (lines[0].time, "")
    assert list(record.newest("alpha")) == [lines[0], lines[2]]
    assert record.names == ("alpha", "beta")


def test_two_followers_of_one_run_keep_each_line_once() -> None:
    record = RunRecord("r1")
    with record.open_log("alpha", since="") as first, record.open_log("alpha", since="") as second:
        for log, seconds in ((first, (1, 2)), (second, (1, 2, 3)), (first, (3, 4, 5)), (second, (4, 5))):
            for one in seconds:
                log.add(line_of(one))
            record.settle()
    assert list(record.lines()) == [line_of(1), line_of(2), line_of(3), line_of(4), line_of(5)]


def test_a_line_cut_short_is_left_out_and_harms_no_other() -> None:
    """A crash in the middle of a line: the next line begins on its own, and the cut one comes again."""
    record = RunRecord("r1")
    keep(record, line_of(1), line_of(2))
    file = record.folder / "lines/alpha@.0001.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    assert list(record.lines()) == [line_of(1)]

    keep(record, line_of(2), line_of(3))
    assert list(record.lines()) == [line_of(1), line_of(2), line_of(3)]


def test_missing_lines_are_fetched_again_once() -> None:
    engine = FakeEngine("alpha")
    id = engine.create(lan.plan().nodes[0].container)
    container = RunningContainer(node=FakeNode("alpha", engine=engine), node_rank=0, id=id)
    record = RunRecord("r1")
    engine.write(id, lan.moment(1), "[rank0]: one")
    assert [outcome.value() for outcome in collect_logs([container], record)] == [1]
    engine.write(id, lan.moment(2), "[rank0]: two")
    assert [outcome.value() for outcome in collect_logs([container], record)] == [1]
    assert [outcome.value() for outcome in collect_logs([container], record)] == [0]
    assert [line.text for line in record.lines()] == ["one", "two"]


EXAMPLE = itertools.count()
LINES = st.lists(
    st.builds(
        RunLine,
        time=st.integers(0, 99).map(lan.moment),
        node=st.sampled_from(lan.NAMES),
        node_rank=st.just(0),
        rank=st.none() | st.integers(0, 9),
        text=st.text(),
    ).map(lambda line: RunLine(**{**vars(line), "node_rank": lan.NAMES.index(line.node)})),
    max_size=30,
    unique=True,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=LINES)
def test_merging_loses_and_invents_nothing(lines: list[RunLine]) -> None:
    """Any order of the nodes' lines comes out sorted by time, each once, equal times in the node's own order."""
    record = RunRecord(f"example-{next(EXAMPLE)}")
    keep(record, *lines)

    merged = list(record.lines())

    assert [line.time for line in merged] == sorted(line.time for line in merged)
    assert len(merged) == len(set(merged))
    assert set(merged) == set(lines)
    for name in lan.NAMES:
        own = list(dict.fromkeys(line for line in lines if line.node == name))
        assert [line for line in merged if line.node == name] == sorted(own, key=lambda line: line.time)


def test_runs_are_listed_newest_first() -> None:
    for number, name in enumerate(("old", "new", "middle")):
        RunRecord(name).save_plan(lan.plan())
        age = (30, 10, 20)[number]
        os.utime(RunRecord(name).folder / "plan-0.json", (1e9 - age, 1e9 - age))
    assert [record.run_id for record in recorded_runs()] == ["new", "middle", "old"]


def test_nothing_recorded() -> None:
    assert (recorded_runs(), recorded_history(), list(RunRecord("r1").lines())) == ([], [], [])
    assert (list(RunRecord("r1").events("step")), RunRecord("r1").folder.exists()) == ([], False)


def test_one_bad_plan_hides_no_other_run() -> None:
    RunRecord("good").save_plan(lan.plan(command=("gpt2", "--epochs", "1")))
    RunRecord("bad").save_plan(lan.plan())
    (RunRecord("bad").folder / "plan-0.json").write_text('{"run_id": "ba')
    assert RunRecord("bad").plan() is None
    assert "is not a plan of this version" in RunRecord("bad").unreadable
    past = {run.run_id: run for run in recorded_history()}
    assert past["good"].command == "gpt2 --epochs 1"
    assert "is not a plan" in past["bad"].reason


def test_lies_under_the_users_state(state: Path) -> None:
    RunRecord("r1").save_outcome("stopped", "")
    assert json.loads((state / "runs/r1/record.jsonl").read_text())["state"] == "stopped"


# ── How it is written ──


def test_everything_of_a_run_is_for_its_user_alone(state: Path) -> None:
    before = os.umask(0o022)
    try:
        record = RunRecord("r1")
        record.save_intent(lan.plan())
        record.save_plan(lan.plan())
        record.save_outcome("failed", "exit code 3")
        record.mark_stopping()
        record.claim(lan.plan(), ["alpha"], "replan")
        keep(record, line_of(1))
        with only_supervisor(record):
            pass
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in state.rglob("*")}
    assert {mode for name, mode in modes.items() if name in ("runs", "r1", "lines")} == {0o700}
    assert {mode for name, mode in modes.items() if name not in ("runs", "r1", "lines")} == {0o600}
    assert len(modes) >= 6


def test_a_folder_of_an_older_version_is_closed_to_others() -> None:
    record = RunRecord("r1")
    record.folder.mkdir(parents=True, mode=0o755)
    record.save_outcome("failed", "exit code 3")
    assert record.folder.stat().st_mode & 0o777 == 0o700


def test_what_was_there_outlives_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord("r1")
    record.save_plan(lan.plan())

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.save_plan(replace(lan.plan(), attempt=1))
    assert record.plan() == lan.plan()
    assert sorted(path.name for path in record.folder.iterdir()) == ["plan-0.json", "record.jsonl"]


@pytest.mark.parametrize("name", ["copy of a run", "-x", ".hidden", "a" * 200])
def test_folders_that_bear_no_runs_name_are_passed_over(name: str) -> None:
    RunRecord("r1").save_plan(lan.plan())
    foreign = RunRecord("r1").folder.parent / name
    foreign.mkdir()
    (foreign / "plan-0.json").write_text("{}")
    assert [record.run_id for record in recorded_runs()] == ["r1"]
    assert [past.run_id for past in recorded_history()] == ["r1"]


def test_a_launch_that_was_undone_is_no_run() -> None:
    record = RunRecord("r1")
    record.save_intent(lan.plan())
    assert [run.reason for run in recorded_history()] == ["its launch was cut short"]
    record.forget_intent(0)
    assert (recorded_history(), record.folder.exists()) == ([], False)


def test_a_start_that_is_repeated_keeps_the_claim_and_its_base() -> None:
    """A supervisor that tries again, or adopts the run: another base would end the lineage."""
    record, plan = RunRecord(lan.IDENTITY.run_id), lan.plan(lan.NAMES)
    record.save_plan(plan)
    later = replace(plan, attempt=1, claim="1" * 32)
    record.save_plan(later)
    base = record.journal.attempts[-1].claim.base
    assert not record.save_intent(later)
    record.save_plan(later, {"alpha": "c2"})
    assert (record.journal.attempts[-1].claim.base, base) == (0, 0)


def test_a_plan_of_another_claim_is_not_the_attempts() -> None:
    record, plan = RunRecord(lan.IDENTITY.run_id), replace(lan.plan(lan.NAMES), claim="1" * 32)
    record.save_intent(plan)
    record.forget_intent(plan.attempt)
    record.save_plan(replace(plan, claim="2" * 32))
    file = record.folder / plan_name(plan.attempt)
    file.write_text(to_json(plan))
    assert record.plan() is None
    assert "another claim" in record.unreadable


def test_a_run_that_is_taken_over_again_keeps_its_end_and_its_lineage() -> None:
    record = RunRecord(lan.IDENTITY.run_id)
    plan = replace(lan.plan(lan.NAMES), claim="3" * 32)
    record.save_takeover(plan, {"alpha": "c1"}, source="alpha", by="ana")
    record.save_outcome("succeeded", "")
    record.save_takeover(plan, {}, source="alpha", by="ana")
    assert record.outcome() == ("succeeded", "")
