"""The fan-out: one outcome for each, in order, none lost, bounded in number and time."""

from __future__ import annotations

from threading import Barrier, Event, Lock, active_count

import pytest

from orchestrator.fleet.fan_out import begin, fan_out
from orchestrator.fleet.faults import crashes_folder
from orchestrator.fleet.supervise.loop import LatestOnly
from orchestrator.nodes.fake import FakeNode, UnexpectedCallError
from orchestrator.specs.errors import BugError, DeadlineError, EngineError, OrchError


def test_outcomes_come_in_order_whoever_ends_first() -> None:
    last = Event()

    def work(item: int) -> int:
        if item == 0:
            assert last.wait(10)
        elif item == 9:
            last.set()
        return item * item

    assert [outcome.value() for outcome in fan_out(range(10), work)] == [item * item for item in range(10)]


def test_nothing_to_do() -> None:
    assert fan_out([], lambda item: item) == ()


def test_all_work_at_once() -> None:
    barrier = Barrier(20)
    assert len(fan_out(range(20), lambda _: barrier.wait(10))) == 20


def test_never_more_than_the_limit() -> None:
    lock, now, most = Lock(), [0], [0]
    pairs = Barrier(2)

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        pairs.wait(10)  # two are inside; a third would be counted before they leave
        with lock:
            now[0] -= 1

    fan_out(range(8), work, limit=2)
    assert most == [2]


def test_an_error_is_an_outcome_of_its_own() -> None:
    def work(item: int) -> int:
        if item == 1:
            raise EngineError("refused", node="beta")
        return item

    outcomes = fan_out([0, 1, 2], work)
    assert [outcome.result for outcome in outcomes] == [0, None, 2]
    assert isinstance(outcomes[1].error, EngineError)
    with pytest.raises(EngineError):
        outcomes[1].value()


def test_an_unexpected_exception_is_the_outcome_of_its_node_alone() -> None:
    nodes = [FakeNode("alpha"), FakeNode("beta")]
    fine, broken = fan_out(nodes, lambda node: 1 // (node.name == "alpha"))
    assert fine.value() == 1
    assert isinstance(broken.error, BugError)
    assert str(broken.error).startswith("beta: ZeroDivisionError: ")
    (file,) = crashes_folder().iterdir()
    assert str(broken.error).endswith(f"this is a bug in orch; report it with {file}")


def test_what_is_no_exception_is_raised_at_once() -> None:
    with pytest.raises(UnexpectedCallError):
        fan_out([FakeNode("alpha")], lambda node: node.run(["an", "unexpected", "call"]))


def test_no_caller_waits_for_work_whose_thread_has_died() -> None:
    with pytest.raises(UnexpectedCallError):
        begin(lambda: FakeNode("alpha").run(["an", "unexpected", "call"])).result(10)


def test_a_fault_beside_the_following_is_reported_and_ends_nothing() -> None:
    reports: list[OrchError] = []
    turns = LatestOnly(reports.append)
    turns.add(lambda: 1 // 0)
    turns.finish(10)
    turns.add(lambda: None)
    turns.finish(10)
    assert [type(error) for error in reports] == [BugError]


def test_what_has_not_ended_is_late_and_the_rest_is_returned() -> None:
    never = Event()
    nodes = [FakeNode("alpha"), FakeNode("beta")]
    outcomes = fan_out(nodes, lambda node: node.name == "alpha" or never.wait(), timeout_s=0.05)
    never.set()
    assert outcomes[0].value() is True
    assert isinstance(outcomes[1].error, DeadlineError)
    assert str(outcomes[1].error) == "beta: no answer in 0 s"


def test_what_has_not_begun_in_time_never_does() -> None:
    first, begun = Event(), []

    def work(item: int) -> None:
        begun.append(item)
        first.wait()

    outcomes = fan_out(range(3), work, timeout_s=0.05, limit=1)
    first.set()
    assert all(isinstance(outcome.error, OrchError) for outcome in outcomes)
    fan_out(range(1), lambda _: None)  # a fresh thread runs after those that waited for their turn were let go
    assert len(begun) == 1


def test_it_takes_no_more_threads_than_work_may_run() -> None:
    before, most, lock = active_count(), [0], Lock()

    def work(_: int) -> None:
        with lock:
            most[0] = max(most[0], active_count() - before)

    assert len(fan_out(range(1000), work, limit=3)) == 1000
    assert 1 <= most[0] <= 3
