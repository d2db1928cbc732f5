"""The report of a run that is read as it grows: each event once, whatever clocks, files and attempts do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from contract.event_lines import encode_event
from contract.events import LineRedrawn, StepDone
from contract.log_lines import EVENT_MARK
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import Journal
from orchestrator.state.run_history import RunHistory
from orchestrator.store.events import EventCursor
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.evidence import recorded_evidence
from orchestrator.watch.report import GrowingReport, report_of
from tests import lan
from tests.page_scene import TRACEBACK, record_run


def keep(record: RunRecord, *steps: int, second: int = 0, node: str = "alpha") -> None:
    with record.open_log(node, "c1") as log:
        for step in steps:
            text = encode_event(StepDone(rank=0, step=step, loss=1.0 / step))
            log.add(RunLine(time=lan.moment(second + step), node=node, node_rank=0, rank=0, text=text))


def steps(record: RunRecord, growing: GrowingReport) -> tuple[float, ...]:
    loss = growing.report().curve("train", "loss")
    return loss.x if loss else ()


def test_new_events_are_added() -> None:
    record = RunRecord("r1")
    record.save_plan(lan.plan())
    growing = GrowingReport(record)
    assert (growing.read(), steps(record, growing)) == (False, ())
    keep(record, 1, 2)
    assert (growing.read(), steps(record, growing)) == (True, (1, 2))
    keep(record, 3)
    assert (growing.read(), steps(record, growing)) == (True, (1, 2, 3))
    assert (growing.read(), steps(record, growing)) == (False, (1, 2, 3))


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    record = RunRecord("r1")
    keep(record, 1, 2, second=1000)
    growing = GrowingReport(record)
    growing.read()
    keep(record, 3, 4, second=10)
    assert growing.read()
    assert steps(record, growing) == (1, 2, 3, 4)


def test_an_index_that_is_lost_or_damaged_is_read_again() -> None:
    record = RunRecord("r1")
    keep(record, 1, 2)
    growing = GrowingReport(record)
    growing.read()
    index = record.folder / "events.sqlite"
    for damage in (index.unlink, lambda: index.write_bytes(b"no database" * 1000)):
        damage()
        keep(record, 3)
        growing.read()
        assert steps(record, growing) == (1, 2, 3)


def test_a_new_attempt_begins_again_with_its_plan() -> None:
    record = RunRecord("r1")
    keep(record, 1)
    growing = GrowingReport(record)
    growing.read()
    assert growing.report().machines == ()
    record.save_plan(lan.plan())
    growing.read()
    assert [one.node for one in growing.report().machines] == ["alpha", "beta"]
    assert steps(record, growing) == (1,)


def test_a_record_cut_in_half() -> None:
    record = RunRecord("r1")
    keep(record, *range(1, 50))
    file = next(record.folder.glob("lines/*.jsonl"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (record.folder / "events.sqlite").unlink()
    growing = GrowingReport(record)
    growing.read()
    assert steps(record, growing)[0] == 1
    assert 20 < len(steps(record, growing)) < 30


def test_a_report_has_all_lines_and_the_last_ones_that_are_no_events() -> None:
    record = record_run("r1", lan.NAMES[:2], points=100, outcome=("failed", "rank 1"), tail=TRACEBACK)
    before = sum(1 for _ in record.lines())
    with record.open_log("alpha", "c0") as log:
        for n in range(3000):
            bar = encode_event(LineRedrawn(bar="", text=f"{n}%"))
            log.add(RunLine(time=lan.moment(n, 1), node="alpha", node_rank=0, rank=0, text=bar))
    made, lines = report_of(record), list(record.lines())
    assert made.lines == len(lines) == before + 3000
    assert (made.begun_at, made.ended_at) == (lines[0].time, lines[-1].time)
    assert [text for _, _, text in made.last_lines][-len(TRACEBACK) :] == list(TRACEBACK)
    assert len(made.last_lines) == 10 + len(TRACEBACK)
    assert made.state == "failed"
    assert made.postmortem.failure


VALUES = st.one_of(
    st.integers(-1, 60), st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just(2**70),
    st.just({"alpha": 1.0}), st.just([[1]]),
)  # fmt: skip
STEPS = st.dictionaries(
    st.sampled_from(("loss", "per_s", "unit", "final_step", "rank", "node", "t", "compute_s", "event", "others", "lr")),
    VALUES,
)


@given(st.lists(st.tuples(st.integers(1, 20) | VALUES, STEPS), max_size=30))
def test_the_same_report_as_of_decoded_steps(found: list[tuple[Any, dict[str, Any]]]) -> None:
    lines = [(1, {"loss": 1.0}), *found]
    texts = [EVENT_MARK + json.dumps({"event": "step", "step": step, **values}) for step, values in lines]
    quick, decoded = RunHistory(), RunHistory()
    for n, text in enumerate(texts):
        quick.add(line := RunLine(time=lan.moment(n), node="alpha", node_rank=0, rank=0, text=text))
        with patch("orchestrator.state.run_history.step_values", return_value=None):
            decoded.add(line)
    one, other = (each.report("r1", journal=Journal(), forecast=None, now=0.0) for each in (quick, decoded))
    assert replace(one, curves=()) == replace(other, curves=())
    by_name = [sorted(each.curves, key=lambda curve: (curve.name, curve.unit)) for each in (one, other)]
    assert by_name[0] == by_name[1]


def test_the_first_event_after_a_marker_is_the_oldest() -> None:
    record = RunRecord("r1")
    keep(record, 2, second=5)
    keep(record, 1, node="beta")
    lines = list(record.new_events(EventCursor()))
    assert lines[0] is None
    assert [line.node for line in lines[1:] if line] == ["beta", "alpha"]


def test_recorded_evidence_has_the_end_and_not_the_figures() -> None:
    record = record_run("r1", lan.NAMES[:2], points=2500, outcome=("failed", "rank 1"), tail=TRACEBACK)
    found = recorded_evidence(record)
    assert [line.text for line in found.lines][-len(TRACEBACK) :] == list(TRACEBACK)
    shown = [line.event.step or 0 for line in found.lines if isinstance(line.event, StepDone)]
    assert min(shown) > 1000  # only those among the last lines
    assert list(found.lines) == sorted(found.lines, key=lambda line: line.time)
