"""Recorder of a run: killed, stopped, on two computers, on a full disk; and readers of what it stores."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.events import StepDone
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.supervise import log_reader
from orchestrator.fleet.supervise.follow import follow
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.run_events import ContainerExited, LinesNotKept, RunEvent, RunLine, Tick
from orchestrator.store import recorder
from orchestrator.store.recorder import RecorderLock
from orchestrator.store.run_record import RunRecord
from orchestrator.store.run_store import RunStore
from tests import lan
from tests.lan import event

LINES = 3000
WRITER = """
import json, sys
from pathlib import Path
from orchestrator.specs.run_events import RunLine
from orchestrator.store import line_log
from orchestrator.store.run_store import RunStore
line_log.SEGMENT_BYTES, store = 20_000, RunStore(Path(sys.argv[1]))
given = json.loads(sys.stdin.readline())
with store.open_log("alpha", "c1") as log:
    begin = 1 + int(log.since[20:29]) if log.since else 0
    for number in range(begin, len(given)):
        log.add(RunLine(**given[number]))
        if number % 7 == 0:
            store.settle()
            print(number, flush=True)
print("done", flush=True)
"""
HOLDER = """
import sys
from pathlib import Path
from orchestrator.store.recorder import RecorderLock
lock = RecorderLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


def line(number: int) -> RunLine:
    text = event("step", step=number).removeprefix("[rank0]: ") if number % 5 == 0 else f"line {number}"
    return RunLine(time=lan.moment(0, number), node="alpha", node_rank=0, rank=0, text=text)


@contextmanager
def process(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root},
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def give_lines(running: subprocess.Popen[str]) -> None:
    """Give the process the lines that it is to write."""
    assert running.stdin
    running.stdin.write(json.dumps([line(number).values() for number in range(LINES)]) + "\n")
    running.stdin.flush()


def answer(running: subprocess.Popen[str]) -> str:
    assert running.stdout
    return running.stdout.readline().strip()


def test_a_recorder_that_is_killed_twenty_times_loses_and_doubles_nothing(tmp_path: Path) -> None:
    store, seeded = RunStore(tmp_path), random.Random(5)  # noqa: S311  # the same in each run
    for _ in range(20):
        with process(WRITER, tmp_path) as writer:
            give_lines(writer)
            for _ in range(seeded.randrange(1, 12)):
                answer(writer)
            writer.send_signal(signal.SIGKILL)
        found = list(store.lines())
        assert found == [line(number) for number in range(len(found))]
    with process(WRITER, tmp_path) as writer:
        give_lines(writer)
        while answer(writer) != "done":
            pass
    assert list(store.lines()) == [line(number) for number in range(LINES)]
    assert [one.event.step for one in store.events(StepDone) if one.event] == list(range(0, LINES, 5))  # type: ignore[attr-defined]  # steps alone


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process can have so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_and_doubles_nothing_once_it_has_room_again(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.open_log("alpha", "c1") as log, largest_file(5000):
        for number in range(300):
            log.add(line(number))
            if number % 9 == 0:
                store.settle()
    assert "lines cannot be stored on this computer any more (File too large)" in log.problem
    stored = list(store.lines())
    assert 20 < len(stored) < 60
    with store.open_log("alpha", "c1") as log:
        for number in range(len(stored), 300):
            assert line(number).time > log.since
            log.add(line(number))
    assert list(store.lines()) == [line(number) for number in range(300)]
    assert [one.event.step for one in store.events(StepDone) if one.event] == list(range(0, 300, 5))  # type: ignore[attr-defined]  # steps alone


# ── The lock ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_process_records_and_the_next_one_follows_when_it_is_killed(tmp_path: Path) -> None:
    clock = Clock()
    lock = RecorderLock(tmp_path, clock=clock)
    with process(HOLDER, tmp_path) as holder:
        assert answer(holder) == "True"
        assert not lock.take()
        holder.send_signal(signal.SIGSTOP)
        assert lock.silent_recorder() == ""
        clock.now += recorder.SILENT_S
        assert lock.silent_recorder().startswith(f"process {holder.pid} of ")
        holder.send_signal(signal.SIGCONT)
        assert not lock.take()
        holder.kill()
        holder.wait()
    assert lock.take()
    assert lock.silent_recorder() == ""


def test_a_sign_of_life_is_noticed_by_the_own_clock(tmp_path: Path) -> None:
    clock = Clock()
    holding, looking = RecorderLock(tmp_path), RecorderLock(tmp_path, clock=clock)
    assert holding.take()
    for _ in range(5):
        clock.now += recorder.SILENT_S - 1
        holding.beat()
        assert looking.silent_recorder() == ""
    clock.now += recorder.SILENT_S
    assert looking.silent_recorder() != ""
    holding.release()
    assert looking.silent_recorder() == ""
    assert looking.take()


def test_of_two_computers_with_one_home_whose_locks_do_not_reach_each_other_one_records(tmp_path: Path) -> None:
    clock = Clock()
    first = RecorderLock(tmp_path, host="one")
    assert first.take()
    content = (tmp_path / recorder.NAME).read_bytes()
    first.release()
    file = tmp_path / recorder.NAME
    file.write_bytes(content)  # held by a lock that is not seen here
    second = RecorderLock(tmp_path, host="two", clock=clock)
    for beat in range(3):
        file.write_bytes(content.replace(b" 1\n", b" %d\n" % (beat + 2)))
        assert not second.take()
        clock.now += recorder.SILENT_S - 1
        assert not second.take()
    clock.now += recorder.SILENT_S
    assert second.take()


# ── Others that watch ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Counting(lan.Actor):
    """Counts the streams that are open."""

    streams: list[str] = field(default_factory=list)

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        if follow:
            self.streams.append(since)
        return super().logs(container, follow=follow, since=since, tail=tail)


def begun() -> tuple[lan.Lan, RunningContainer, Counting, RunRecord]:
    here = lan.lan("alpha")
    engine = here.nodes["alpha"].engine = Counting("alpha", ends_with=None)
    plan = lan.plan(("alpha",))
    (container,) = launch(here.nodes, plan)
    return here, container, engine, RunRecord(plan.run_id)


def texts(happenings: Iterator[RunEvent], number: int) -> list[str]:
    found = list[str]()
    for one in happenings:
        if isinstance(one, RunLine):
            found.append(one.text)
            if len(found) == number:
                break
    return found


def store_line(record: RunRecord, container: str, second: int) -> None:
    with record.open_log("alpha", container) as log:
        log.add(RunLine(time=lan.moment(second), node="alpha", node_rank=0, rank=0, text=f"line {second}"))


def test_a_second_watcher_opens_no_stream_and_takes_over_when_the_recorder_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.fleet.supervise.watch_store.BEAT_S", 0.0)
    _, container, engine, record = begun()
    recording = record.recorder()
    assert recording.take()
    store_line(record, container.id, 1)
    watching = follow([container], record, tick_s=0.01)
    next(watching)
    for second in (2, 3):
        engine.write(container.id, lan.moment(second), f"[rank0]: line {second}")
        store_line(record, container.id, second)
    assert (texts(watching, 2), engine.streams) == (["line 2", "line 3"], [])
    engine.write(container.id, lan.moment(4), "[rank0]: line 4")
    recording.release()
    assert texts(watching, 1) == ["line 4"]
    assert engine.streams == [lan.moment(3)]
    engine.finish(container.id, 0)
    assert isinstance([one for one in watching if not isinstance(one, Tick)][-1], ContainerExited)
    assert [one.text for one in record.lines()] == ["line 1", "line 2", "line 3", "line 4"]
    assert record.recorder().take()


def test_a_second_watcher_sees_the_end_after_the_last_lines() -> None:
    _, container, engine, record = begun()
    recording = record.recorder()
    assert recording.take()
    engine.write(container.id, lan.moment(1), "[rank0]: line 1")
    engine.finish(container.id, 3)
    watching = follow([container], record, tick_s=0.01)
    next(watching)
    store_line(record, container.id, 1)
    seen = [one for one in watching if isinstance(one, RunLine | ContainerExited)]
    assert [type(one) for one in seen] == [RunLine, ContainerExited]
    assert engine.streams == []
    recording.release()


def test_beside_a_recorder_that_is_stopped_the_lines_are_shown_and_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.fleet.supervise.watch_store.BEAT_S", 0.0)
    monkeypatch.setattr(recorder, "SILENT_S", 0.0)
    _, container, engine, record = begun()
    recording = record.recorder()
    assert recording.take()
    engine.write(container.id, lan.moment(1), "[rank0]: line 1")
    engine.finish(container.id, 0)
    monkeypatch.setattr("orchestrator.fleet.supervise.watch_store.StoreWatch._look", lambda _self: iter(()))
    seen = list(follow([container], record, tick_s=0.01))
    problems = [one.reason for one in seen if isinstance(one, LinesNotKept)]
    assert len(problems) == 1
    assert f"process {os.getpid()} of " in problems[0]
    assert [one.text for one in seen if isinstance(one, RunLine)] == ["line 1"]
    assert list(record.lines()) == []
    recording.release()


def test_lines_that_a_stopped_recorder_left_out_are_stored_when_it_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.fleet.supervise.watch_store.BEAT_S", 0.0)
    monkeypatch.setattr(recorder, "SILENT_S", 0.0)
    _, container, engine, record = begun()
    recording = record.recorder()
    assert recording.take()
    watching = follow([container], record, tick_s=0.01)
    engine.write(container.id, lan.moment(1), "[rank0]: line 1")
    assert texts(watching, 1) == ["line 1"]
    assert list(record.lines()) == []
    recording.release()
    noted = next(one for one in watching if isinstance(one, LinesNotKept))
    assert noted.reason == ""
    engine.write(container.id, lan.moment(2), "[rank0]: line 2")
    assert texts(watching, 1) == ["line 2"]
    engine.finish(container.id, 0)
    assert [type(one) for one in watching if not isinstance(one, Tick)] == [ContainerExited]
    assert [one.text for one in record.lines()] == ["line 1", "line 2"]
    assert record.recorder().take()


def test_lines_that_did_not_fit_on_the_disk_are_stored_as_soon_as_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "RETRY_S", 0.0)
    writing, is_full = os.write, True

    def full(descriptor: int, content: bytes) -> int:
        if is_full and b'"node_rank"' in content:
            raise OSError(28, "No space left on device")
        return writing(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    _, container, engine, record = begun()
    following = follow([container], record, tick_s=0.01)
    problems = list[bool]()
    for second in range(1, 40):
        engine.write(container.id, lan.moment(second), f"[rank0]: line {second}")
        is_full = second < 20
        for one in following:
            record.settle()
            problems += [bool(one.reason)] if isinstance(one, LinesNotKept) else []
            if isinstance(one, RunLine):
                break
    engine.finish(container.id, 0)
    assert any(isinstance(one, ContainerExited) for one in following)
    assert problems == [True, False]
    assert [one.text for one in record.lines()] == [f"line {second}" for second in range(1, 40)]
