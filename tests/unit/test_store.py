"""The store of a run: segments and events, whatever a crash, a clock, a disk or another program does to them."""

from __future__ import annotations

import gzip
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.event_lines import encode_event
from contract.events import CheckpointWritten, ProgressEvent, ResourcesSampled, StepDone
from orchestrator.fleet.runs.read_logs import LogSource, select_lines
from orchestrator.specs.run_events import RunLine
from orchestrator.store import events, line_log
from orchestrator.store.event_file import EventFile, is_shared
from orchestrator.store.events import EventReader, EventWriter
from orchestrator.store.line_filter import Filter
from orchestrator.store.line_log import locked
from orchestrator.store.read_lines import WantedLines
from orchestrator.store.run_record import RunRecord
from orchestrator.store.run_store import RunStore
from orchestrator.store.segments import as_json, segments_in
from tests import lan
from tests.lan import event
from tests.page_scene import usage
from tests.work import calls_of

SEGMENT = 2000


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "SEGMENT_BYTES", SEGMENT)


def line(number: int, text: str = "", at: int | None = None) -> RunLine:
    moment = lan.moment(number // 100 if at is None else at, number)
    return RunLine(time=moment, node="alpha", node_rank=0, rank=0, text=text or f"line {number}")


def write(folder: Path, numbers: range, container: str = "c1") -> str:
    with RunStore(folder).open_log("alpha", container) as log:
        for number in numbers:
            log.add(line(number))
    return log.problem


def numbers_of(lines: Iterator[RunLine]) -> list[int]:
    return [int(one.text.split()[1]) for one in lines]


def written(store: RunStore) -> Iterator[RunLine]:
    """Lines in the order written."""
    return reversed(list(store.newest("alpha")))


def files(folder: Path, ending: str) -> list[Path]:
    return sorted(file for file in (folder / "lines").iterdir() if file.name.endswith(ending))


def test_full_segments_are_ordinary_gzip_files_named_by_their_times(tmp_path: Path) -> None:
    write(tmp_path, range(500))
    packed, (plain,) = files(tmp_path, ".jsonl.gz"), files(tmp_path, ".jsonl")
    assert len(packed) > 10
    assert 0 < plain.stat().st_size < SEGMENT
    assert re.fullmatch(r"alpha@c1\.0001\.2026-01-02T150000\.0+Z\.2026-01-02T150000\.\d+Z\.jsonl\.gz", packed[0].name)
    whole = b"".join([*(gzip.decompress(file.read_bytes()) for file in packed), plain.read_bytes()])
    assert whole == b"".join(as_json(line(number)) for number in range(500))
    store = RunStore(tmp_path)
    for forwards in (written(store), store.lines()):
        assert numbers_of(forwards) == list(range(500))
    for backwards in (store.newest("alpha"), store.lines(newest_first=True)):
        assert numbers_of(backwards) == list(range(499, -1, -1))
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.rglob("*") if file.is_file()}
    assert set(modes.values()) == {0o600}
    assert "events.sqlite" in modes


def test_a_file_cut_at_any_byte_keeps_the_lines_before_the_cut_and_gets_the_others_again(tmp_path: Path) -> None:
    write(tmp_path / "whole", range(15))
    plain = files(tmp_path / "whole", ".jsonl")[0].read_bytes()
    before = -1
    for cut in range(0, len(plain), 41):
        folder = tmp_path / str(cut)
        (folder / "lines").mkdir(parents=True)
        (folder / "lines/alpha@c1.0001.jsonl").write_bytes(plain[:cut])
        found = numbers_of(written(RunStore(folder)))
        assert found == list(range(len(found)))
        assert len(found) >= before  # a longer file never has fewer lines
        before = len(found)
        assert write(folder, range(len(found), 130)) == ""
        assert numbers_of(RunStore(folder).lines()) == list(range(130))
    assert before > 12


def test_damage_costs_lines_of_its_segment_at_most(tmp_path: Path) -> None:
    write(tmp_path, range(400))
    file = files(tmp_path, ".gz")[3]
    sound, seeded = file.read_bytes(), random.Random(7)  # noqa: S311  # the same damage in each run
    inside = len(gzip.decompress(sound).splitlines())
    for _ in range(60):
        damaged = bytearray(sound)
        damaged[seeded.randrange(len(sound))] ^= 1 << seeded.randrange(8)
        file.write_bytes(damaged)
        shown = {one.text for one in RunStore(tmp_path).lines()}
        assert len(shown & {f"line {number}" for number in range(400)}) >= 400 - inside
        assert len(list(RunStore(tmp_path).newest("alpha"))) >= 400 - inside


def test_streams_that_overtake_each_other_store_each_line_once_in_its_order(tmp_path: Path) -> None:
    store, seeded, at = RunStore(tmp_path), random.Random(3), [0, 0, 0]  # noqa: S311
    given = [line(number, at=0 if number >= 300 else None) for number in range(610)]  # the clock was set back
    logs = [store.open_log("alpha", "c1", since="") for _ in at]
    while min(at) < 600:
        one = seeded.randrange(3)
        for _ in range(min(seeded.randrange(30), 600 - at[one])):
            logs[one].add(given[at[one]])
            at[one] += 1
        if seeded.random() < 0.5:
            store.settle()
    for log in logs:
        log.close()
    assert numbers_of(written(store)) == list(range(600))
    with store.open_log("alpha", "c1", since=given[450].time) as late:
        for one in given[451:]:
            late.add(one)
    assert numbers_of(written(store)) == list(range(610))


def test_lines_of_equal_time_are_all_stored(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.open_log("alpha", "c1", since="") as first, store.open_log("alpha", "c1", since="") as second:
        for log in (first, second):
            for number in range(20):
                log.add(RunLine(time=lan.moment(1), node="alpha", node_rank=0, rank=0, text=f"line {number}"))
            store.settle()
    assert numbers_of(written(store)) == list(range(20))


def test_a_crash_between_compressing_and_removing_gives_no_line_twice(tmp_path: Path) -> None:
    write(tmp_path, range(60))
    first = files(tmp_path, ".gz")[0]
    (tmp_path / "lines/alpha@c1.0001.jsonl").write_bytes(gzip.decompress(first.read_bytes()))
    assert numbers_of(RunStore(tmp_path).lines()) == list(range(60))
    assert write(tmp_path, range(60, 90)) == ""
    assert numbers_of(RunStore(tmp_path).lines()) == list(range(90))


def test_a_full_segment_that_a_crash_left_is_compressed_by_the_next_process(tmp_path: Path) -> None:
    content = b"".join(as_json(line(number)) for number in range(40))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/alpha@c1.0001.jsonl").write_bytes(content)
    assert write(tmp_path, range(40, 100)) == ""
    assert numbers_of(written(RunStore(tmp_path))) == list(range(100))
    assert files(tmp_path, ".gz")[0].name.startswith("alpha@c1.0001.")


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, range(100))
    lines = tmp_path / "lines"
    (lines / "alpha@c2.0001.jsonl.gz").write_bytes(gzip.compress(b"hello\n" * 99))
    (lines / "alpha@c3.0001.jsonl.gz").write_bytes(os.urandom(5000))
    (lines / "alpha@c4.0001.jsonl").write_bytes(b"\0" * 5000)
    (lines / "notes.jsonl.gz.txt").write_text("mine")
    (lines / "beta@.0001.jsonl").touch()
    store = RunStore(tmp_path)
    assert numbers_of(store.lines()) == list(range(100))
    assert numbers_of(store.newest("alpha")) == list(range(99, -1, -1))
    assert list(store.events(StepDone)) == []
    assert store.names == ("alpha",)


def test_a_line_of_a_mebibyte_and_control_characters(tmp_path: Path) -> None:
    texts = ["x" * 1024 * 1024, "\x1b[31mred\x1b[0m\r\0\x07", "\u2028\u202e\ud800", ""]
    with RunStore(tmp_path).open_log("alpha", "c1") as log:
        for number, text in enumerate(texts):
            log.add(RunLine(time=lan.moment(number), node="alpha", node_rank=0, rank=0, text=text))
    assert [one.text for one in RunStore(tmp_path).lines()] == texts
    assert [one.text for one in RunStore(tmp_path).newest("alpha")] == texts[::-1]
    assert log.problem == ""


def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    order = [*range(500, 600), *range(100, 200), *range(590, 610)]
    with RunStore(tmp_path).open_log("alpha", "c1") as log:
        for number in order:
            log.add(line(number))
    store = RunStore(tmp_path)
    assert numbers_of(store.newest("alpha")) == order[::-1]
    assert numbers_of(store.lines()) == sorted(order)
    assert numbers_of(store.lines(newest_first=True)) == sorted(order, reverse=True)
    assert store.last_time("alpha", "c1") == line(609).time
    some = WantedLines(since=line(150).time, until=line(502).time)
    assert numbers_of(store.lines(None, some)) == [
        *range(151, 200),
        500,
        501,
        502,
    ]


def test_a_full_disk_while_a_segment_is_compressed_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.store.segments.replace_file", full)
        assert write(tmp_path, range(200)) == ""
    assert files(tmp_path, ".gz") == []
    assert numbers_of(RunStore(tmp_path).lines()) == list(range(200))
    assert write(tmp_path, range(200, 250)) == ""
    assert numbers_of(RunStore(tmp_path).lines()) == list(range(250))


def test_many_lines_are_reached_by_the_work_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "SEGMENT_BYTES", 256 * 1024)
    record, number = RunRecord("r1"), 100_000
    with record.open_log("alpha", "c1") as log:
        for one in range(number):
            log.add(line(one, at=one * 3000 // number))
    source = LogSource(record=record, names=("alpha",), unreachable={})
    for wanted, count in (
        (Filter(tail=50), 50),
        (Filter(since=lan.moment(2999)), 33),
        (Filter(until=lan.moment(1)), 34),
        (Filter(grep=re.compile("no such line")), 0),
    ):
        assert abs(len(list(select_lines(source, wanted))) - count) <= 1
        assert calls_of(partial(list, select_lines(source, wanted))) < number / 10


def test_lines_that_are_compressed_while_they_are_read_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, range(15))
    listed = iter((range(15, 30),))

    def at_a_bad_moment(folder: Path, stem: str = "") -> Any:
        found = segments_in(folder, stem)
        for numbers in listed:
            write(tmp_path, numbers)
        return found

    monkeypatch.setattr("orchestrator.store.run_store.segments_in", at_a_bad_moment)
    assert numbers_of(RunStore(tmp_path).lines())[:15] == list(range(15))
    assert len(files(tmp_path, ".gz")) == 1


def test_a_process_that_is_stopped_with_the_lock_ends_the_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_log.locked, "__kwdefaults__", {"wait_s": 0.0}, raising=False)
    monkeypatch.setattr(line_log.locked.__wrapped__, "__kwdefaults__", {"wait_s": 0.0})
    with locked(tmp_path):
        assert "lines cannot be stored" in write(tmp_path, range(3))
    assert write(tmp_path, range(3)) == ""
    assert numbers_of(RunStore(tmp_path).lines()) == [0, 1, 2]


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def store_events(record: RunRecord, steps: range, node: str = "alpha", since: str | None = None) -> None:
    with record.open_log(node, "c1", since) as log:
        for step in steps:
            whole = event("step", step=step, loss=1 / (step + 1)).removeprefix("[rank0]: ")
            for text in (whole, f"step {step}", '@orch {"event": "step", "step": -'):
                log.add(RunLine(time=lan.moment(step), node=node, node_rank=0, rank=0, text=text))


def steps_of(lines: Iterator[RunLine]) -> list[int | None]:
    return [one.event.step for one in lines if isinstance(one.event, ProgressEvent)]


def test_events_by_kind_time_and_node() -> None:
    record = RunRecord("r1")
    store_events(record, range(100))
    store_events(record, range(100), node="beta")
    store_events(record, range(100), node="beta", since="")  # a second stream
    assert steps_of(record.events(StepDone, nodes=["alpha"])) == list(range(100))
    assert len(list(record.events(StepDone))) == len(list(record.events("step"))) == 200
    between = record.events(ProgressEvent, nodes={"beta"}, since=lan.moment(90), until=lan.moment(93))
    assert steps_of(between) == [91, 92, 93]
    assert steps_of(record.events(StepDone, nodes={"beta"}, newest_first=True))[:2] == [99, 98]
    assert list(record.events(CheckpointWritten)) == []
    assert record.last_checkpoint() is None


def damaged(file: Path) -> None:
    file.write_bytes(b"SQLite format 3\0" + os.urandom(9000))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    file.write_bytes(content)


def older(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE events")
        database.execute("CREATE TABLE events(other)")
        database.execute("PRAGMA user_version = 0")
        database.commit()


def foreign(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE stored")
        database.commit()


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("break_it", [Path.unlink, damaged, cut, flipped, older, foreign, folder])
def test_a_file_of_events_that_is_missing_damaged_or_older_is_made_again(break_it: Callable[[Path], object]) -> None:
    record = RunRecord("r1")
    store_events(record, range(100))
    assert len(list(record.events(StepDone))) == 100
    file = record.folder / "events.sqlite"
    break_it(file)
    assert steps_of(record.events(StepDone)) == list(range(100))
    store_events(record, range(100, 120))
    assert steps_of(record.events(StepDone)) == list(range(120))
    assert steps_of(record.events(StepDone, newest_first=True)) == list(range(119, -1, -1))
    assert file.is_dir() or file.stat().st_mode & 0o777 == 0o600


def test_events_are_read_while_another_process_holds_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.event_file.WAIT_S", 0.01)
    record = RunRecord("r1")
    store_events(record, range(50))
    with closing(sqlite3.connect(record.folder / "events.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        store_events(record, range(50, 99))
        assert steps_of(record.events(StepDone))[:50] == list(range(50))
        other.execute("ROLLBACK")
    assert steps_of(record.events(StepDone)) == list(range(99))


class NoLog(sqlite3.Connection):
    """A file system without shared memory."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA journal_mode" if sql.startswith("PRAGMA journal_mode=WAL") else sql, *arguments)


class Refusing(sqlite3.Connection):
    """A file system that refuses the write-ahead log."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA journal_mode=WAL"):
            raise sqlite3.OperationalError("locking protocol")
        return super().execute(sql, *arguments)


@pytest.mark.parametrize("kind", [NoLog, Refusing])
def test_where_there_is_no_write_ahead_log_a_rollback_journal_is_used(
    kind: type[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    record, connect = RunRecord("r1"), partial(sqlite3.connect, factory=kind)
    monkeypatch.setattr(EventFile.__init__, "__defaults__", (connect,))
    store_events(record, range(30))
    assert steps_of(record.events(StepDone)) == list(range(30))
    with closing(sqlite3.connect(record.folder / "events.sqlite")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert database.execute("SELECT count(*) FROM events").fetchone() == (60,)


def test_where_sqlite_does_not_work_events_are_read_from_the_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(EventFile.__init__, "__defaults__", (connect,))
    record = RunRecord("r1")
    store_events(record, range(60))
    assert steps_of(record.events(StepDone)) == list(range(60))
    assert steps_of(record.events(StepDone, newest_first=True)) == list(range(59, -1, -1))
    cursor = events.EventCursor()
    first, *others = record.new_events(cursor)
    assert first is None
    assert steps_of(one for one in others if one) == list(range(60))


MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /home rw shared:2 - nfs4 server:/home rw
41 40 0:36 / /home/ana/local rw - xfs /dev/sdb1 rw
42 22 0:37 / /mnt/two\\040words rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("place", "shared"),
    [("/home/ana", True), ("/home/ana/local/x", False), ("/var", False), ("/mnt/two words/a", True), ("/mnt", False)],
)
def test_a_file_system_that_other_computers_share(tmp_path: Path, place: str, shared: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert is_shared(Path(place), tmp_path / "mountinfo") is shared
    assert not is_shared(Path(place), tmp_path / "none")


def test_a_shared_folder_has_a_rollback_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.event_file.is_shared", lambda _folder: True)
    write(tmp_path, range(3))
    with closing(sqlite3.connect(tmp_path / "events.sqlite")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_values_that_no_column_takes_are_left_out() -> None:
    record = RunRecord("r1")
    text = event("step", step=1).removeprefix("[rank0]: ")
    with record.open_log("alpha", "c1") as log:
        for rank in (2**70, 0):
            log.add(RunLine(time=lan.moment(1), node="alpha", node_rank=rank, rank=0, text=text))
        log.add(RunLine(time="\ud800", node="alpha", node_rank=0, rank=0, text=text))
    assert len(list(record.events(StepDone))) == 1


def test_of_very_many_steps_every_second_old_one_goes_and_of_old_samples_one_a_minute_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MOST_STEPS", 100)
    record = RunRecord("r1")
    with record.open_log("alpha", "c1") as log:
        for step in range(160):
            text = event("step", step=step).removeprefix("[rank0]: ")
            log.add(RunLine(time=lan.moment(step), node="alpha", node_rank=0, rank=0, text=text))
        for second in range(200, 400):
            text = encode_event(ResourcesSampled(node="alpha", usage=usage(0, second)))
            log.add(RunLine(time=lan.moment(second), node="alpha", node_rank=0, rank=None, text=text))
    (record.folder / "events.sqlite").unlink()
    shown = steps_of(record.events(StepDone))
    assert (len(shown), shown[-80:]) == (120, list(range(80, 160)))
    assert len(list(record.events(ResourcesSampled))) == 4
    assert len(list(record.lines(None, WantedLines(passes=lambda one: one.event is not None)))) == 360


def test_events_that_a_crash_left_out_are_added_by_the_next_reader() -> None:
    record = RunRecord("r1")
    store_events(record, range(50))
    file = segments_in(record.folder / "lines")[-1].path
    late = RunLine(time=lan.moment(99), node="alpha", node_rank=0, rank=0, text=event("step", step=99)[9:])
    with file.open("ab") as segment:
        segment.write(as_json(late) + b'{"time": "2026-01')
    assert steps_of(record.events(StepDone)) == [*range(50), 99]
    lines = record.folder / "lines"
    reader = EventReader(EventFile(record.folder), lines)
    assert steps_of(reader.events([StepDone])) == [*range(50), 99]
    with closing(EventWriter(EventFile(record.folder), lines)) as writer:
        writer.add()
    assert steps_of(record.events(StepDone)) == [*range(50), 99]
