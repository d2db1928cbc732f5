"""The controller's folder of a run: what is kept, and what a crash leaves readable."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.fleet.runs.collect import as_json, collect_logs
from orchestrator.fleet.runs.history import remembered
from orchestrator.fleet.runs.launch import Seated
from orchestrator.fleet.runs.records import RunRecord, recorded_runs
from orchestrator.nodes.fake import FakeEngine, FakeNode
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.happening import Said
from tests import lan


def said(second: int, text: str = "hello", node: str = "alpha", node_rank: int = 0) -> Said:
    return Said(time=lan.moment(second), node=node, node_rank=node_rank, rank=node_rank, text=text)


def keep(record: RunRecord, *lines: Said) -> None:
    for line in lines:
        with record.open_log(line.node) as log:
            log.write(as_json(line))


def test_plan_and_outcome_are_kept() -> None:
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


@pytest.mark.parametrize("text", ["", '{"state": "fai', "[]", '{"state": "failed"}'])
def test_an_outcome_cut_short_is_none(text: str) -> None:
    record = RunRecord("r1")
    record.save_plan(lan.plan())
    (record.folder / "outcome.json").write_text(text)
    assert record.outcome() is None


def test_lines_are_merged_in_order_of_time() -> None:
    record = RunRecord("r1")
    lines = [said(2), said(3, node="beta", node_rank=1), said(4)]
    keep(record, lines[2], lines[1], lines[0])
    assert list(record.lines()) == lines
    assert list(record.lines("alpha")) == [lines[0], lines[2]]
    assert (record.last_time("alpha"), record.last_time("gamma")) == (lan.moment(4), "")


def test_two_followers_of_one_run_keep_each_line_once() -> None:
    record = RunRecord("r1")
    keep(record, said(1), said(2), said(1), said(2))
    assert list(record.lines()) == [said(1), said(2)]


def test_a_line_cut_short_is_left_out_and_harms_no_other() -> None:
    """A crash in the middle of a line: the next line begins on its own, and the cut one comes again."""
    record = RunRecord("r1")
    keep(record, said(1), said(2))
    file = record.folder / "alpha.log.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    assert list(record.lines()) == [said(1)]

    keep(record, said(2), said(3))
    assert list(record.lines()) == [said(1), said(2), said(3)]


def test_what_was_not_kept_is_fetched_again_once() -> None:
    engine = FakeEngine("alpha")
    container = engine.create(lan.plan().nodes[0].container)
    seat = Seated(node=FakeNode("alpha", engine=engine), node_rank=0, container=container)
    record = RunRecord("r1")
    engine.write(container, lan.moment(1), "[rank0]: one")
    assert [outcome.value() for outcome in collect_logs([seat], record)] == [1]
    engine.write(container, lan.moment(2), "[rank0]: two")
    assert [outcome.value() for outcome in collect_logs([seat], record)] == [1]
    assert [outcome.value() for outcome in collect_logs([seat], record)] == [0]
    assert [line.text for line in record.lines()] == ["one", "two"]


EXAMPLE = itertools.count()
LINES = st.lists(
    st.builds(
        Said,
        time=st.integers(0, 99).map(lan.moment),
        node=st.sampled_from(lan.NAMES),
        node_rank=st.just(0),
        rank=st.none() | st.integers(0, 9),
        text=st.text(),
    ).map(lambda line: Said(**{**vars(line), "node_rank": lan.NAMES.index(line.node)})),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=LINES)
def test_merging_loses_and_invents_nothing(lines: list[Said]) -> None:
    """However the nodes' lines come in: sorted by time, each once, a node's own order kept where times are equal."""
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
        os.utime(RunRecord(name).folder / "plan.json", (1e9 - age, 1e9 - age))
    assert [record.run_id for record in recorded_runs()] == ["new", "middle", "old"]


def test_nothing_recorded() -> None:
    assert (recorded_runs(), remembered(), list(RunRecord("r1").lines())) == ([], [], [])


def test_one_bad_plan_hides_no_other_run() -> None:
    RunRecord("good").save_plan(lan.plan(command=("gpt2", "--epochs", "1")))
    RunRecord("bad").save_plan(lan.plan())
    (RunRecord("bad").folder / "plan.json").write_text('{"run_id": "ba')
    with pytest.raises(ConfigError, match="is not a plan of this version"):
        RunRecord("bad").plan()
    past = {run.run_id: run for run in remembered()}
    assert past["0102-1504-ab12"].command == "gpt2 --epochs 1"
    assert "is not a plan" in past["bad"].reason


def test_lies_under_the_users_state(state: Path) -> None:
    RunRecord("r1").save_outcome("stopped", "")
    assert json.loads((state / "runs/r1/outcome.json").read_text())["state"] == "stopped"
