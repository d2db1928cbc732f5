"""The lines that the controller keeps: within a size, on a disk that may be full, no log read twice."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import pytest

from contract.events import StepDone
from orchestrator.specs.run_events import RunLine
from orchestrator.store import events, line_log
from orchestrator.store.event_file import EventFile
from orchestrator.store.events import EventReader, EventWriter
from orchestrator.store.line_filter import Filter, _newest
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_record import RunRecord
from orchestrator.store.run_store import RunStore
from orchestrator.store.segments import Segment, pack, segments_in
from tests import lan
from tests.lan import event
from tests.unit.conftest import THREE, Orch, detached
from tests.work import calls_of

SMALL = 4096


def line_of(number: int, text: str = "") -> RunLine:
    return RunLine(time=lan.moment(number), node="alpha", node_rank=0, rank=0, text=text or f"line {number}")


def write(folder: Path, numbers: range, container: str = "c1") -> str:
    with RunStore(folder).open_log("alpha", container) as log:
        for number in numbers:
            log.add(line_of(number))
    return log.problem


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "SEGMENT_BYTES", SMALL)
    monkeypatch.setattr(line_log, "STORED_BYTES", 1500)


@pytest.mark.usefixtures("small")
def test_a_log_that_is_too_long_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    assert write(tmp_path, range(40)) == ""
    with RunStore(tmp_path).open_log("alpha", "c1") as log:
        for number in range(40, 1000):
            log.add(line_of(number))
            if number % 100 == 0:
                RunStore(tmp_path).settle()
    assert "alpha has written more than" in log.problem
    numbers = [int(line.text.split()[1]) for line in reversed(list(RunStore(tmp_path).newest("alpha")))]
    assert sum(file.stat().st_size for file in tmp_path.glob("lines/*.jsonl*")) <= 1500 + 3 * SMALL
    gaps = [(first, second) for first, second in pairwise(numbers) if second != first + 1]
    assert (numbers[0], numbers[-1], len(gaps)) == (0, 999, 1)
    assert gaps[0][0] > 20
    assert gaps[0][1] < 960
    assert [line.text for line in RunStore(tmp_path).newest("alpha")] == [f"line {number}" for number in numbers[::-1]]


def test_a_search_that_is_ended_before_a_block_has_given_all_lines_after_it(tmp_path: Path) -> None:
    """Short blocks are read several at a time."""
    write(tmp_path, range(21), "c1")
    write(tmp_path, range(100, 101), "c1")
    write(tmp_path, range(90, 91), "c2")
    write(tmp_path, range(80, 81), "c3")

    def at_segment(last: str) -> None:
        if last == lan.moment(80):
            raise TimeoutError

    given: list[str] = []
    with pytest.raises(TimeoutError):
        given.extend(
            line.text for line in RunStore(tmp_path).lines(None, WantedLines(at_segment=at_segment), newest_first=True)
        )
    assert given == ["line 100", "line 90"]


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    write(tmp_path / "run", range(3))
    (file,) = (tmp_path / "run/lines").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_is_no_line_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    (file,) = (tmp_path / "lines").iterdir()
    with file.open("ab") as log:
        log.write(b'\xff\n[]\n7\n{"time": 7, "node": "alpha", "node_rank": 0, "rank": 0, "text": ""}\n' + b"[" * 99999)
    write(tmp_path, range(2, 4))
    assert [line.text for line in reversed(list(RunStore(tmp_path).newest("alpha")))] == [
        f"line {number}" for number in range(4)
    ]
    assert [line.text for line in RunStore(tmp_path).newest("alpha")] == [f"line {number}" for number in (3, 2, 1, 0)]


def test_text_that_cannot_be_encoded_is_stored(tmp_path: Path) -> None:
    with RunStore(tmp_path).open_log("alpha") as log:
        log.add(line_of(1, "caf\udce9"))
    assert ([line.text for line in reversed(list(RunStore(tmp_path).newest("alpha")))], log.problem) == (
        ["caf\udce9"],
        "",
    )


def test_the_last_lines_of_many_take_the_work_of_the_last_lines(tmp_path: Path) -> None:
    with RunStore(tmp_path).open_log("alpha") as log:
        for number in range(50_000):
            log.add(line_of(number % 3600, f"line {number}"))
    assert calls_of(lambda: _newest(RunStore(tmp_path), "alpha", Filter(tail=3), 3)) < 8000  # of 5,000 lines: the same
    tracemalloc.start()
    found = _newest(RunStore(tmp_path), "alpha", Filter(tail=3), 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 3
    assert peak < 4 * 1024 * 1024


WRITE = os.write


def full(descriptor: int, content: bytes) -> int:
    """A disk that has room for no line of a log."""
    if b'"node_rank"' in content:
        raise OSError(28, "No space left on device")
    return WRITE(descriptor, content)


@pytest.mark.parametrize("words", [("launch", "--no-supervise"), ("launch",), ("launch", "--json")])
def test_a_full_disk_is_reported_once_and_the_following_continues(
    orch: Orch, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(os, "write", full)
    here = lan.lan(*THREE, says=("[rank0]: hi", event("done", step=1)), ends_with=0)
    ran = orch(*words, on=here)
    assert ran.code == 0
    assert ran.err.count("No space left on device") == (0 if "--json" in words else 1)

    again = orch("logs", on=here)
    assert again.err.count("No space left on device") == 1
    monkeypatch.undo()


def test_what_could_not_be_saved_is_not_removed_from_the_nodes(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    here = lan.lan(*THREE, says=("[rank0]: hi",), ends_with=0)
    run = detached(orch, here)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert orch("clean", on=here).code == 5
        assert orch("stop", run, on=here).code in (0, 5)
    assert len(here.containers) == 3
    assert orch("logs", run, on=here).out == "[all 3 nodes] hi\n"


def test_the_log_of_the_next_attempt_is_read_from_its_beginning(tmp_path: Path) -> None:
    write(tmp_path, range(600, 610), "first")
    with RunStore(tmp_path).open_log("alpha", "second") as log:
        log.add(line_of(300))
    record = RunRecord("r")
    record.folder = tmp_path
    assert record.last_time("alpha", "first") == lan.moment(609)
    assert record.last_time("alpha", "second") == lan.moment(300)
    assert record.last_time("alpha", "third") == ""


@pytest.mark.parametrize("follow", [False, True])
def test_a_clock_that_is_set_back_loses_no_line(orch: Orch, follow: bool) -> None:
    here = lan.lan(*THREE, says=(), ends_with=None)
    detached(orch, here)
    engine = here.nodes["beta"].engine
    (container,) = engine.made
    engine.write(container, lan.moment(600), "[rank1]: before")
    if follow:
        orch("logs", on=here)
    engine.write(container, lan.moment(300), "[rank1]: after the clock was set back")
    engine.write(container, lan.moment(301), "[rank1]: the reason")
    if follow:
        for name in THREE:
            (one,) = here.nodes[name].engine.made
            here.nodes[name].engine.finish(one, 1)
        assert orch("supervise", on=here).code == 1
    for _ in range(2):
        out = orch("logs", on=here).out
        shown = sorted(out.replace("[1 beta ] ", "").splitlines())
        assert shown == ["after the clock was set back", "before", "the reason"]


@pytest.mark.usefixtures("small")
def test_a_full_segment_that_is_compressed_after_it_was_listed_is_not_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, waiting, listing = RunStore(tmp_path), list[Callable[[], object]](), line_log.segments_in

    def listed_then_packed(folder: Path, stem: str = "") -> list[Segment]:
        found = listing(folder, stem)
        while waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(line_log, "STORED_BYTES", 10**6)
    monkeypatch.setattr(line_log, "segments_in", listed_then_packed)
    monkeypatch.setattr(line_log._PACKER, "submit", lambda pack, *of: waiting.append(partial(pack, *of)))
    with store.open_log("alpha", "c1") as log:
        for number in range(200):
            log.add(line_of(number))
            store.settle()
            assert log.problem == ""
    assert [one.text for one in store.lines()] == [f"line {number}" for number in range(200)]


@pytest.mark.usefixtures("small")
def test_an_empty_segment_after_a_full_one_leaves_no_event_to_add(tmp_path: Path) -> None:
    number, lines = 0, tmp_path / "lines"
    with RunStore(tmp_path).open_log("alpha", "c1") as log:
        while len(list(lines.glob("*"))) < 2:
            log.add(line_of(number, event("step", step=number).removeprefix("[rank0]: ")))
            RunStore(tmp_path).settle()
            number += 1
    assert [one.size for one in segments_in(lines) if not one.packed] == [0]
    assert not EventReader(EventFile(tmp_path), lines).is_behind()
    write(tmp_path, range(number, number + 1))
    assert len(list(RunStore(tmp_path).lines())) == number + 1


@pytest.mark.usefixtures("small")
def test_a_recorder_writes_while_a_reader_makes_the_table_of_events_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 1)
    monkeypatch.setattr(line_log, "STORED_BYTES", 10**6)
    store, given = RunStore(tmp_path), [event("step", step=number).removeprefix("[rank0]: ") for number in range(300)]
    with store.open_log("alpha", "c1") as log:
        for number, text in enumerate(given[:298]):
            log.add(line_of(number, text))
            store.settle()
        EventFile(tmp_path).remove()
        writing = iter(range(298, 300))

        def write_one(_s: float) -> None:
            """Write without waiting for the lock."""
            for number in islice(writing, 1):
                log.add(line_of(number, given[number]))
                with line_log.locked(tmp_path, wait_s=0.0):
                    pass
                store.settle()

        monkeypatch.setattr("time.sleep", write_one)
        found = list(store.events(StepDone))
        assert list(writing) == []
        assert log.problem == ""
    assert [one.event.step for one in found if one.event] == list(range(300))  # type: ignore[attr-defined]  # steps alone
    assert not EventReader(EventFile(tmp_path), tmp_path / "lines").is_behind()


@pytest.mark.usefixtures("small")
def test_events_of_a_segment_that_is_compressed_while_segments_are_listed_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_log, "STORED_BYTES", 10**6)
    monkeypatch.setattr(line_log._PACKER, "submit", lambda *_: None)
    store = RunStore(tmp_path)
    with store.open_log("alpha", "c1") as log:
        for number in range(100):
            log.add(line_of(number, event("step", step=number).removeprefix("[rank0]: ")))
            store.settle()
    EventFile(tmp_path).remove()
    listing = Path.glob

    def compressed_in_between(folder: Path, pattern: str) -> list[Path]:
        found = list(listing(folder, pattern))
        monkeypatch.setattr(Path, "glob", listing)
        full = next(one for one in segments_in(folder) if not one.packed and one.size >= SMALL)
        pack(full)
        return [file for file in found if file != full.path]

    monkeypatch.setattr(Path, "glob", compressed_in_between)
    assert len(segments_in(tmp_path / "lines")) > 2
    assert [one.number for one in segments_in(tmp_path / "lines")][:2] == [1, 2]
    monkeypatch.setattr(Path, "glob", compressed_in_between)
    with closing(EventWriter(EventFile(tmp_path), tmp_path / "lines")) as writer:
        writer.add()
    assert len(list(store.events(StepDone))) == 100


@pytest.mark.usefixtures("small")
def test_events_of_a_segment_that_is_compressed_after_it_was_listed_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_log._PACKER, "submit", lambda *_: None)
    lines, listing = tmp_path / "lines", events.segments_in
    for number in range(100):
        write_event(tmp_path, number)
        if number == 5:
            with_five = (tmp_path / "events.sqlite").read_bytes()
    (tmp_path / "events.sqlite").write_bytes(with_five)

    def listed_then_packed(folder: Path, stem: str = "") -> list[Segment]:
        found = listing(folder, stem)
        for one in found[:-1]:
            pack(one)
        return found

    monkeypatch.setattr(events, "segments_in", listed_then_packed)
    with closing(EventWriter(EventFile(tmp_path), lines)) as writer:
        writer.add()
    assert len(list(RunStore(tmp_path).events(StepDone))) == 100


def write_event(folder: Path, number: int) -> None:
    with RunStore(folder).open_log("alpha", "c1") as log:
        log.add(line_of(number, event("step", step=number).removeprefix("[rank0]: ")))
