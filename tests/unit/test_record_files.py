"""The files of a record: compressed blocks and an index, whatever a crash, a clock or another program does to them."""

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

import pytest

from contract.events import CheckpointWritten, ProgressEvent, StepDone
from orchestrator.fleet.runs import kept_lines
from orchestrator.fleet.runs.kept_lines import KeptLines, KeptLog, as_json
from orchestrator.fleet.runs.log_blocks import Block
from orchestrator.fleet.runs.log_files import LogFile
from orchestrator.fleet.runs.progress import last_checkpoint, recorded_history
from orchestrator.fleet.runs.read_logs import Filter, LogSource, select_lines
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import RunLine
from tests import lan
from tests.lan import event
from tests.work import calls_of

BLOCK = 2000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_lines, "BLOCK_BYTES", BLOCK)


def said(number: int, text: str = "", at: int | None = None) -> RunLine:
    moment = lan.moment(number // 100 if at is None else at, number)
    return RunLine(time=moment, node="alpha", node_rank=0, rank=0, text=text or f"line {number}")


def write(folder: Path, numbers: range, container: str = "c1") -> str:
    with KeptLog(folder, "alpha", container) as log:
        for number in numbers:
            log.keep(said(number))
    return log.problem


def numbers_of(lines: Iterator[RunLine]) -> list[int]:
    return [int(line.text.split()[1]) for line in lines]


def test_full_blocks_are_compressed_and_readable_with_zcat(tmp_path: Path) -> None:
    write(tmp_path, range(500))
    packed, plain = tmp_path / "alpha@c1.log.jsonl.gz", tmp_path / "alpha@c1.log.jsonl"
    assert 0 < plain.stat().st_size < BLOCK
    whole = gzip.decompress(packed.read_bytes()).decode() + plain.read_text()
    assert whole == "".join(as_json(said(number)) for number in range(500))
    assert numbers_of(KeptLines(tmp_path).in_files()) == list(range(500))
    assert numbers_of(KeptLines(tmp_path).lines()) == list(range(500))
    assert numbers_of(KeptLines(tmp_path).newest("alpha")) == list(range(499, -1, -1))
    assert numbers_of(KeptLines(tmp_path).newest_lines()) == list(range(499, -1, -1))
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"alpha@c1.log.jsonl", "alpha@c1.log.jsonl.gz", "index.sqlite"} <= set(modes)


def test_a_file_cut_at_any_byte_keeps_the_lines_before_the_cut(tmp_path: Path) -> None:
    write(tmp_path / "whole", range(100))
    packed = (tmp_path / "whole/alpha@c1.log.jsonl.gz").read_bytes()
    kept, before = 0, -1
    for cut in range(0, len(packed), 41):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "alpha@c1.log.jsonl.gz").write_bytes(packed[:cut])
        found = numbers_of(KeptLines(folder).in_files())
        assert found == list(range(len(found)))
        assert len(found) >= before  # a longer file never has fewer lines
        before, kept = len(found), max(kept, len(found))
        assert write(folder, range(len(found), 130)) == ""
        assert numbers_of(KeptLines(folder).lines()) == list(range(130))
    assert kept > 70


def test_damage_costs_the_lines_of_its_block_at_most(tmp_path: Path) -> None:
    write(tmp_path, range(400))
    file = tmp_path / "alpha@c1.log.jsonl.gz"
    sound, seeded = file.read_bytes(), random.Random(7)  # noqa: S311  # the same damage in each run
    for _ in range(60):
        damaged = bytearray(sound)
        damaged[seeded.randrange(len(sound))] ^= 1 << seeded.randrange(8)
        file.write_bytes(damaged)
        shown = {line.text for line in KeptLines(tmp_path).lines()}
        assert len(shown & {f"line {number}" for number in range(400)}) >= 400 - 2 * BLOCK // 90
        assert len(list(KeptLines(tmp_path).newest("alpha"))) >= 300


def test_two_followers_lose_no_line_and_give_none_twice(tmp_path: Path) -> None:
    with KeptLog(tmp_path, "alpha", "c1") as first, KeptLog(tmp_path, "alpha", "c1") as second:
        for number in range(0, 600, 3):
            for log, own in ((first, (0, 1)), (second, (1, 2, 0))):
                for one in own:
                    log.keep(said(number + one))
    assert numbers_of(KeptLines(tmp_path).lines()) == list(range(600))
    assert (first.problem, second.problem) == ("", "")
    newest = numbers_of(KeptLines(tmp_path).newest("alpha"))
    assert set(newest) == set(range(600))
    assert set(newest[:5]) == {597, 598, 599}


def test_a_crash_between_compressing_and_removing_gives_no_line_twice(tmp_path: Path) -> None:
    write(tmp_path, range(10))
    plain = (tmp_path / "alpha@c1.log.jsonl").read_bytes()
    write(tmp_path, range(10, 30))
    with KeptLog(tmp_path, "alpha", "c1") as log:
        log._pack()
        size = (tmp_path / "alpha@c1.log.jsonl.gz").stat().st_size
        (tmp_path / "alpha@c1.log.jsonl").unlink()
    everything = "".join(as_json(said(number)) for number in range(30)).encode()
    assert everything.startswith(plain)
    last = gzip.decompress((tmp_path / "alpha@c1.log.jsonl.gz").read_bytes())
    (tmp_path / "alpha@c1.log.jsonl").write_bytes(last[last.index(as_json(said(22)).encode()) :])
    assert numbers_of(KeptLines(tmp_path).lines()) == list(range(30))
    with KeptLog(tmp_path, "alpha", "c1") as log:
        log._pack()
    assert numbers_of(KeptLines(tmp_path).lines()) == list(range(30))
    assert size > 0


def test_a_record_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    for name, numbers in (("alpha@c1.log", range(300)), ("alpha@c1.log.2", range(300, 600)), ("beta.log", range(5))):
        lines = "".join(as_json(said(number)) for number in numbers)
        (tmp_path / f"{name}.jsonl").write_text(lines.replace("alpha", name.partition("@")[0].partition(".")[0]))
    record = KeptLines(tmp_path)
    assert record.names == ("alpha", "beta")
    assert numbers_of(record.lines("alpha")) == list(range(600))
    assert numbers_of(record.newest("alpha"))[:2] == [599, 598]
    assert record.last_time("alpha", "c1") == said(599).time
    write(tmp_path, range(600, 700))
    assert numbers_of(record.lines("alpha")) == list(range(700))
    assert (tmp_path / "alpha@c1.log.2.jsonl.gz").exists()
    assert len(list(record.lines())) == 705


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, range(100))
    (tmp_path / "alpha@c2.log.jsonl.gz").write_bytes(gzip.compress(b"hello\n" * 99))
    (tmp_path / "alpha@c3.log.jsonl.gz").write_bytes(os.urandom(5000))
    (tmp_path / "alpha@c4.log.jsonl").write_bytes(b"\0" * 5000)
    (tmp_path / "notes.jsonl.gz.txt").write_text("mine")
    (tmp_path / "beta.log.jsonl.gz").touch()
    record = KeptLines(tmp_path)
    assert numbers_of(record.lines()) == list(range(100))
    assert numbers_of(record.newest("alpha")) == list(range(99, -1, -1))
    assert list(record.events(StepDone)) == []


def test_a_line_of_a_mebibyte_and_control_characters(tmp_path: Path) -> None:
    texts = ["x" * 1024 * 1024, "\x1b[31mred\x1b[0m\r\0\x07", "\u2028\u202e\ud800", ""]
    with KeptLog(tmp_path, "alpha", "c1") as log:
        for number, text in enumerate(texts):
            log.keep(RunLine(time=lan.moment(number), node="alpha", node_rank=0, rank=0, text=text))
    assert [line.text for line in KeptLines(tmp_path).lines()] == texts
    assert [line.text for line in KeptLines(tmp_path).newest("alpha")] == texts[::-1]
    assert log.problem == ""


def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    order = [*range(500, 600), *range(100, 200), *range(590, 610)]
    with KeptLog(tmp_path, "alpha", "c1") as log:
        for number in order:
            log.keep(said(number))
    record = KeptLines(tmp_path)
    assert numbers_of(record.newest("alpha")) == order[::-1]
    assert numbers_of(record.lines()) == sorted(set(order))
    assert numbers_of(record.newest_lines()) == sorted(set(order), reverse=True)
    assert record.last_time("alpha", "c1") == said(609).time
    assert numbers_of(record.lines(since=said(150).time, until=said(502).time)) == [*range(151, 200), 500, 501, 502]


def test_a_full_disk_while_a_block_is_compressed_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, range(10))
    writing = os.write

    def full(descriptor: int, content: bytes) -> int:
        if content[:2] == b"\x1f\x8b":
            writing(descriptor, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        return writing(descriptor, content)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert "No space left on device" in write(tmp_path, range(10, 200))
    kept = numbers_of(KeptLines(tmp_path).lines())
    assert kept == list(range(len(kept)))
    assert len(kept) > 15
    assert write(tmp_path, range(len(kept), 200)) == ""
    assert numbers_of(KeptLines(tmp_path).lines()) == list(range(200))


def test_many_lines_are_reached_by_the_work_of_the_result() -> None:
    record, number = RunRecord("r1"), 100_000
    with record.open_log("alpha", "c1") as log:
        log.write("".join(as_json(said(one, at=one * 3000 // number)) for one in range(number)))
    source = LogSource(record=record, names=("alpha",), unreachable={})
    for wanted, count in (
        (Filter(tail=50), 50),
        (Filter(since=lan.moment(2999)), 33),
        (Filter(until=lan.moment(1)), 34),
        (Filter(grep=re.compile("no such line")), 0),
    ):
        assert abs(len(list(select_lines(source, wanted))) - count) <= 1
        assert calls_of(partial(list, select_lines(source, wanted))) < 1.5 * number


# ── The index of events ───────────────────────────────────────────────────────────────────────────────────────────────


def keep_events(record: RunRecord, steps: range, node: str = "alpha") -> None:
    with record.open_log(node, "c1") as log:
        for step in steps:
            whole = event("step", step=step, loss=1 / (step + 1)).removeprefix("[rank0]: ")
            for text in (whole, f"step {step}", '@orch {"event": "step", "step": -'):
                log.keep(RunLine(time=lan.moment(step), node=node, node_rank=0, rank=0, text=text))


def steps_of(lines: Iterator[RunLine]) -> list[int | None]:
    return [line.event.step for line in lines if isinstance(line.event, ProgressEvent)]


def test_events_by_kind_time_and_node() -> None:
    record = RunRecord("r1")
    keep_events(record, range(100))
    keep_events(record, range(100), node="beta")
    keep_events(record, range(100), node="beta")  # a second follower
    assert steps_of(record.events(StepDone, nodes=["alpha"])) == list(range(100))
    assert len(list(record.events(StepDone))) == len(list(record.events("step"))) == 200
    assert steps_of(record.events(ProgressEvent, nodes={"beta"}, since=lan.moment(90), until=lan.moment(93))) == [
        91,
        92,
        93,
    ]
    assert steps_of(record.events(StepDone, nodes={"beta"}, newest_first=True))[:2] == [99, 98]
    assert list(record.events(CheckpointWritten)) == []
    assert last_checkpoint(record) is None


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


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def stale(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("DELETE FROM events WHERE 1")
        database.execute("UPDATE files SET inode = inode + 1")
        database.commit()


@pytest.mark.parametrize("break_it", [Path.unlink, damaged, cut, flipped, older, stale, folder])
def test_an_index_that_is_missing_damaged_or_older_is_made_again(break_it: Callable[[Path], object]) -> None:
    record = RunRecord("r1")
    keep_events(record, range(100))
    assert len(list(record.events(StepDone))) == 100
    index = record.folder / "index.sqlite"
    break_it(index)
    keep_events(record, range(100, 120))
    assert steps_of(record.events(StepDone)) == list(range(120))
    assert steps_of(record.events(StepDone)) == list(range(120))
    assert index.is_dir() or index.stat().st_mode & 0o777 == 0o600


def test_an_index_that_another_process_holds_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.fleet.runs.index_file.WAIT_S", 0.01)
    record = RunRecord("r1")
    keep_events(record, range(50))
    with closing(sqlite3.connect(record.folder / "index.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        keep_events(record, range(50, 99))
        assert steps_of(record.events(StepDone)) == list(range(99))
        other.execute("ROLLBACK")
    assert steps_of(record.events(StepDone)) == list(range(99))


def test_values_that_no_column_takes_are_left_out() -> None:
    record = RunRecord("r1")
    text = event("step", step=1).removeprefix("[rank0]: ")
    with record.open_log("alpha", "c1") as log:
        for rank in (2**70, 0):
            log.keep(RunLine(time=lan.moment(1), node="alpha", node_rank=rank, rank=0, text=text))
        log.keep(RunLine(time="\ud800", node="alpha", node_rank=0, rank=0, text=text))
    assert len(list(record.events(StepDone))) == 1


def test_events_of_removed_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_lines, "FILE_BYTES", 4 * BLOCK)
    record = RunRecord("r1")
    keep_events(record, range(600))
    shown = steps_of(record.events(StepDone))
    assert shown == steps_of(line for line in record.lines() if isinstance(line.event, StepDone))
    assert 50 < len(shown) < 500


def test_the_list_of_runs_reads_a_plan_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord("r1")
    record.save_plan(lan.plan(command=("gpt2",)))
    RunRecord("r2").save_intent(lan.plan())
    first = recorded_history()
    read: list[str] = []
    plan = RunRecord.plan

    def counted(record: RunRecord) -> Plan | None:
        read.append(record.run_id)
        return plan(record)

    monkeypatch.setattr(RunRecord, "plan", counted)
    assert (recorded_history(), read) == (first, ["r2"])
    record.save_outcome("failed", "exit code 3")
    assert {one.run_id: one.reason for one in recorded_history()}["r1"] == "exit code 3"
    damaged(record.folder.parent / "catalogue.sqlite")
    assert {one.run_id: one.state for one in recorded_history()} == {"r1": "failed", "r2": "unknown"}


def test_lines_that_are_compressed_while_they_are_read_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, range(15))
    blocks, others = LogFile.blocks, iter((range(15, 30),))

    def at_a_bad_moment(file: LogFile, *, with_times: bool = True) -> list[Block]:
        found = blocks(file, with_times=with_times)
        for numbers in others:
            write(tmp_path, numbers)
        return found

    monkeypatch.setattr(LogFile, "blocks", at_a_bad_moment)
    assert numbers_of(KeptLines(tmp_path).lines())[:15] == list(range(15))
    assert (tmp_path / "alpha@c1.log.jsonl.gz").exists()
