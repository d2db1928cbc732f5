"""A watcher beside the recorder of a run: which lines it shows, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from threading import Event, Thread

import pytest

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.supervise import watch_store
from orchestrator.fleet.supervise.follow import follow
from orchestrator.fleet.supervise.log_reader import LineTarget, LogReader
from orchestrator.render.recovery import recovery_line
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.run_events import ContainerExited, ContainerRemoved, NodeBack, NodeLost, RunEvent, RunLine, Tick
from orchestrator.store.recorder import RecorderLock
from orchestrator.store.run_record import RunRecord
from orchestrator.store.segments import Ends
from tests import lan

SILENT = NodeUnreachableError("no answer in 5 s", node="beta", hint="is it on?")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher looks at everything each time, and pauses for a moment only."""
    for name in ("BEAT_S", "LOOK_EVERY_S", "REST_S"):
        monkeypatch.setattr(watch_store, name, 0.0)
    monkeypatch.setattr(watch_store, "POLL_S", 0.001)


@pytest.fixture
def run() -> Iterator[Run]:
    with Run() as made:
        yield made


class Run:
    """A run on two nodes which another process records."""

    def __init__(self) -> None:
        self.lan = lan.lan("alpha", "beta", ends_with=None)
        self.containers = launch(self.lan.nodes, lan.plan(("alpha", "beta")))
        self.record = RunRecord(lan.IDENTITY.run_id)
        self.recorder: RecorderLock = self.record.recorder()

    def __enter__(self) -> Run:
        assert self.recorder.take()
        return self

    def __exit__(self, *_ended: object) -> None:
        self.recorder.release()

    def container(self, name: str) -> RunningContainer:
        return next(one for one in self.containers if one.node.name == name)

    def fail(self, name: str, method: str = "container") -> None:
        """Let the node answer no more."""
        self.lan.nodes[name].engine.failures[method] = SILENT

    def finish(self, name: str) -> None:
        self.lan.nodes[name].engine.finish(self.container(name).id, 0)

    def write(self, name: str, second: float) -> None:
        self.lan.nodes[name].engine.write(self.container(name).id, lan.moment(second), f"[rank0]: line {second}")

    def store(self, name: str, second: float) -> None:
        """Write a line, which the recorder stores."""
        self.write(name, second)
        one = self.container(name)
        with self.record.open_log(name, one.id) as log:
            log.add(RunLine(time=lan.moment(second), node=name, node_rank=one.node_rank, rank=0, text=f"line {second}"))


def watched(run: Run, *containers: RunningContainer, ends: Ends | None = None) -> Iterator[RunEvent]:
    return follow(containers or run.containers, run.record, tick_s=0.001, patient=True, ends=ends)


def first(happenings: Iterator[RunEvent], most: int = 200) -> list[RunEvent]:
    """All but ticks, of so many."""
    found = [one for one, _ in zip(happenings, range(most), strict=False)]
    assert len(found) < most, "it never ends"
    return [one for one in found if not isinstance(one, Tick)]


def next_line(happenings: Iterator[RunEvent], most: int = 3000) -> str:
    return next((one.text for one in islice(happenings, most) if isinstance(one, RunLine)), "")


def test_a_watcher_ends_when_one_node_has_ended_and_the_other_is_silent(run: Run) -> None:
    run.fail("beta")
    run.finish("alpha")
    assert [type(one) for one in first(watched(run))] == [NodeLost, ContainerExited]


def test_a_watcher_ends_when_one_node_has_ended_and_the_other_was_away_from_the_start(run: Run) -> None:
    run.fail("beta", "containers")
    run.finish("alpha")
    away = replace(run.container("beta"), id="")
    assert ContainerExited in [type(one) for one in first(watched(run, run.container("alpha"), away))]


@pytest.mark.parametrize("is_requested", [False, True])
def test_a_container_that_is_removed_after_a_request_to_stop_is_no_news(run: Run, *, is_requested: bool) -> None:
    if is_requested:
        run.record.mark_stopping()
    for name in ("alpha", "beta"):
        run.lan.nodes[name].engine.remove(run.container(name).id)
    removed = first(watched(run))
    assert removed == [
        ContainerRemoved(node=name, node_rank=rank, is_requested=is_requested)
        for rank, name in enumerate(("alpha", "beta"))
    ]
    assert [recovery_line(one) == "" for one in removed] == [is_requested] * 2


def test_a_watcher_that_takes_over_knows_which_containers_have_ended(run: Run) -> None:
    watching = watched(run)
    next(watching)
    run.finish("alpha")
    assert next(one for one in watching if not isinstance(one, Tick)).node == "alpha"  # type: ignore[union-attr]  # lines alone come
    run.recorder.release()
    for method in ("container", "logs", "containers"):
        run.fail("beta", method)
    assert [type(one) for one in first(watching)] == [NodeLost]


def test_a_job_that_its_scheduler_queues_again_has_not_ended(run: Run) -> None:
    engine = run.lan.nodes["alpha"].engine
    watching = watched(run, run.container("alpha"))
    id = run.container("alpha").id
    spec, facts = engine.made[id]
    engine.made[id] = spec, replace(facts, status="queued")
    assert {type(next(watching)) for _ in range(5)} == {Tick}
    engine.made[id] = spec, facts
    run.finish("alpha")
    assert [type(one) for one in first(watching)] == [ContainerExited]


def test_a_reader_whose_lines_no_one_takes_any_more_ends_with_the_next_line(run: Run) -> None:
    run.recorder.release()
    queue, closed, one = SimpleQueue[RunEvent](), Event(), run.container("alpha")
    into = LineTarget(record=run.record, queue=queue, pause=closed.wait, closed=closed, stores=False)
    reader = LogReader(one, into, "")
    reading = Thread(target=reader.until_its_end, daemon=True)
    reading.start()
    run.write("alpha", 1)
    assert isinstance(queue.get(timeout=10), RunLine)
    closed.set()
    run.write("alpha", 2)
    reading.join(timeout=10)
    assert not reading.is_alive()
    assert queue.empty()


def test_lines_of_a_node_that_was_away_at_first_are_shown_when_it_is_back(run: Run) -> None:
    run.store("beta", 1)
    run.fail("beta", "containers")
    away = replace(run.container("beta"), id="")
    watching = (one for one in watched(run, run.container("alpha"), away) if not isinstance(one, Tick))
    assert isinstance(next(watching), NodeLost)
    run.store("beta", 2)
    run.lan.nodes["beta"].engine.failures.clear()
    back = next(watching)
    assert isinstance(back, NodeBack)
    assert back.container == run.container("beta").id
    run.store("beta", 3)
    assert [next(watching).text for _ in range(2)] == ["line 2", "line 3"]  # type: ignore[union-attr]  # lines alone come
    run.finish("beta")
    run.finish("alpha")
    assert {one.node for one in watching if isinstance(one, ContainerExited)} == {"alpha", "beta"}


def test_lines_after_a_clock_was_set_back_are_shown_by_a_watcher_that_takes_over(run: Run) -> None:
    watching = watched(run, run.container("alpha"))
    next(watching)
    run.store("alpha", 30)
    assert next_line(watching) == "line 30"
    run.recorder.release()
    run.write("alpha", 40)
    assert next_line(watching) == "line 40"
    run.write("alpha", 5)
    assert next_line(watching) == "line 5"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_lines_stored_between_reading_the_past_and_following_are_shown_once(run: Run, is_recorded: bool) -> None:
    if not is_recorded:
        run.recorder.release()
    run.store("alpha", 1)
    ends = run.record.ends()
    run.store("alpha", 2)
    run.store("beta", 3)
    assert [one.text for one in run.record.as_of(ends).lines()] == ["line 1"]
    assert [one.text for one in run.record.as_of(ends).newest("alpha")] == ["line 1"]
    watching = watched(run, ends=ends)
    assert sorted(next_line(watching) for _ in range(2)) == ["line 2", "line 3"]
    run.store("alpha", 4)
    assert next_line(watching) == "line 4"


def test_lines_that_another_process_stores_while_a_watcher_takes_over_are_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = watched(run, run.container("alpha"))
    next(watching)
    asking = RunRecord.last_time

    def last_time(record: RunRecord, node: str, container: str = "") -> str:
        run.store("alpha", 1)
        monkeypatch.setattr(RunRecord, "last_time", asking)
        return record.last_time(node, container)

    monkeypatch.setattr(RunRecord, "last_time", last_time)
    run.recorder.release()
    assert next_line(watching) == "line 1"
    run.write("alpha", 2)
    assert next_line(watching) == "line 2"
