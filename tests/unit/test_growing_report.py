"""The report of a run that is read as it grows: each event once, whatever clocks, files and attempts do."""

from __future__ import annotations

from contract.event_lines import encode_event
from contract.events import StepDone
from orchestrator.fleet.runs.evidence import recorded_evidence
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.fleet.runs.report import GrowingReport, report_of
from orchestrator.specs.run_events import RunLine
from orchestrator.store.events import EventCursor
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


def test_the_same_curves_as_those_of_the_whole_record() -> None:
    record = record_run("r1", lan.NAMES[:2], points=700)
    growing = GrowingReport(record)
    growing.read()
    assert growing.report().curves == report_of(record).curves


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
