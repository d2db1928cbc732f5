"""Staying with a run until it ends: what is said, who failed, who is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from threading import Event

import pytest

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.supervise.attempt import follow_attempt
from orchestrator.fleet.supervise.follow import follow
from orchestrator.fleet.supervise.followed import FollowedRun
from orchestrator.nodes.interface import LogLine
from orchestrator.specs.errors import DeadlineError, NodeUnreachableError
from orchestrator.specs.run import ContainerFacts, State
from orchestrator.specs.run_events import ContainerExited, NodeLost, RunEvent, RunLine, Tick
from orchestrator.state.phase import Phase
from orchestrator.state.run_outcome import RunOutcome
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.lan import event

THREE = lan.NAMES[:3]


@dataclass
class Watched:
    """A run on three nodes that somebody attends."""

    here: lan.Lan
    outcome: RunOutcome
    received: list[RunEvent]
    record: RunRecord

    def calls(self, name: str) -> list[str]:
        return [call[0] for call in self.here.nodes[name].engine.calls]


def watch(here: lan.Lan) -> Watched:
    plan = lan.plan(THREE)
    received: list[RunEvent] = []
    record = RunRecord(plan.run_id)
    containers = launch(here.nodes, plan)
    clock = map(float, count(step=10))  # every look at the clock is ten seconds later
    outcome = follow_attempt(containers, plan, FollowedRun(record, lambda: next(clock)), on=received.append)
    return Watched(here, outcome, received, record)


def test_all_succeed() -> None:
    run = watch(lan.lan(*THREE, says=("[rank0]: hello", event("step", step=3, loss=1.5), event("done", step=3))))
    assert (run.outcome.phase, run.outcome.failure) == (Phase.SUCCEEDED, None)
    assert run.outcome.last_event is not None
    assert run.outcome.last_event.kind == "done"
    assert run.record.outcome() == ("succeeded", "")
    assert sum(isinstance(happening, ContainerExited) for happening in run.received) == 3
    assert not any("stop" in run.calls(name) for name in THREE)


def test_the_first_failure_stops_the_rest_and_is_named() -> None:
    here = lan.Lan()
    here.add("alpha", ends_with=None)
    here.add("beta", says=("[rank1]: loading", "[rank1]: no such file: Data/manifest.json"), ends_with=3)
    here.add("gamma", ends_with=None)

    run = watch(here)

    failure = run.outcome.failure
    assert run.outcome.phase is Phase.FAILED
    assert failure is not None
    assert (failure.node, failure.rank, failure.exit_code, failure.reason) == ("beta", 1, 3, "exit code 3")
    assert failure.lines == ("loading", "no such file: Data/manifest.json")
    assert [name for name in THREE if "stop" in run.calls(name)] == ["alpha", "gamma"]
    assert run.record.outcome() == ("failed", "exit code 3")


def test_what_the_rank_reports_is_the_reason() -> None:
    here = lan.lan(*THREE, ends_with=None)
    report = event("failed", rank=2, error="ValueError", message="loss is nan", frame="train.py:24")
    here.add("gamma", says=("[rank2]: step 12", report), ends_with=1)
    failure = watch(here).outcome.failure
    assert failure is not None
    assert (failure.node, failure.reason, failure.lines) == ("gamma", "ValueError: loss is nan", ("step 12",))


def test_a_stopped_run_has_not_failed() -> None:
    """torchrun exits with 1 after a clean stop too; what the ranks say counts."""
    here = lan.Lan()
    here.add("alpha", says=(event("checkpoint", step=7, verified=True), event("stopped", step=7)), ends_with=1)
    for name in THREE[1:]:
        here.add(name, says=(event("stopped", rank=1, step=7),), ends_with=1)
    run = watch(here)
    assert (run.outcome.phase, run.outcome.failure) == (Phase.STOPPED, None)
    assert run.record.outcome() == ("stopped", "")
    assert not any("stop" in run.calls(name) for name in THREE)


def test_an_end_that_agents_of_another_version_report_is_a_failure() -> None:
    run = watch(lan.lan(*THREE, says=('@orch {"event": "finished", "outcome": "paused"}',)))
    assert run.outcome.phase is Phase.FAILED
    assert run.outcome.failure is not None
    assert (run.outcome.failure.reason, run.record.outcome()) == (
        "its agents give no reason", ("failed", "its agents give no reason"),
    )  # fmt: skip


@dataclass
class Gone(lan.Actor):
    """Its machine loses power: the log stream stays silent, and no node can be asked to stop."""

    back: Event = field(default_factory=Event)

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        self.back.wait()
        yield from ()

    def wait(self, container: str) -> ContainerFacts:
        raise NodeUnreachableError("the connection broke", node=self.node)

    def stop(self, container: str, timeout_s: int) -> None:
        raise DeadlineError("no answer in 34 s", node=self.node)


def test_a_node_without_power_does_not_hold_up_the_end() -> None:
    """Its stream never ends; that it cannot be stopped is the word on it."""
    here = lan.lan(*THREE, ends_with=None)
    here.add("beta", says=("[rank1]: RuntimeError: Connection closed by peer",), ends_with=1)
    gone = here.nodes["gamma"].engine = Gone("gamma")

    run = watch(here)
    gone.back.set()

    failure = run.outcome.failure
    assert failure is not None
    assert (failure.node, failure.exit_code, failure.reason) == ("gamma", None, "no answer in 34 s")


def test_a_node_that_is_lost_is_named() -> None:
    here = lan.lan(*THREE, ends_with=None)
    gone = here.nodes["beta"].engine = Gone("beta")
    gone.back.set()
    run = watch(here)
    failure = run.outcome.failure
    assert failure is not None
    assert (failure.node, failure.rank, failure.reason) == ("beta", 1, "the connection broke")
    assert [type(happening) for happening in run.received if not isinstance(happening, RunLine | Tick)].count(
        NodeLost
    ) == 1


def test_out_of_memory() -> None:
    here = lan.lan(*THREE, ends_with=None)
    plan = lan.plan(THREE)
    containers = launch(here.nodes, plan)
    here.nodes["beta"].engine.finish(containers[1].id, 137, oom_killed=True)
    clock, followed = map(float, count(step=10)), FollowedRun(RunRecord(plan.run_id), lambda: next(clock))
    failure = follow_attempt(containers, plan, followed).failure
    assert failure is not None
    assert (failure.node, failure.reason) == ("beta", "out of memory: the container reached its limit")


def test_lines_are_stored_once_however_often_a_run_is_followed() -> None:
    here = lan.lan(*THREE, says=("[rank0]: one", "[rank0]: two", "agent"))
    plan = lan.plan(THREE)
    containers, record = launch(here.nodes, plan), RunRecord(plan.run_id)
    first = [line for line in follow(containers, record) if isinstance(line, RunLine)]
    again = [line for line in follow(containers, record) if isinstance(line, RunLine)]
    assert len(first) == 9
    assert again == []
    assert set(record.lines()) == set(first)
    assert [(line.rank, line.text) for line in record.lines("beta")] == [(0, "one"), (0, "two"), (None, "agent")]


@dataclass
class Restarted(lan.Actor):
    """Docker starts it again once, by its restart policy."""

    waits: int = 0

    def start(self, container: str) -> None:
        super().start(container)
        self.write(container, lan.moment(1), "first life")
        self.finish(container, 1)

    def wait(self, container: str) -> ContainerFacts:
        self.waits += 1
        if self.waits == 1:  # asked when the log stream has ended, as it does with the process
            self._change(container, status="restarting", exit_code=None)
            facts = self.container(container)
            self.write(container, lan.moment(2), "second life")
            self.finish(container, 0)
            assert facts is not None
            return facts
        return super().wait(container)


def test_a_container_that_is_started_again_is_still_followed() -> None:
    engine = Restarted("alpha")
    id = engine.create(lan.plan(("alpha",)).nodes[0].container)
    here = lan.lan("alpha")
    here.nodes["alpha"].engine = engine
    engine.start(id)
    container = RunningContainer(node=here.nodes["alpha"], node_rank=0, id=id)
    received = list(follow([container], RunRecord("r")))
    assert [line.text for line in received if isinstance(line, RunLine)] == ["first life", "second life"]
    (end,) = [end for end in received if isinstance(end, ContainerExited)]
    assert end.container.state is State.SUCCEEDED


def test_while_nothing_happens_the_clock_ticks() -> None:
    here = lan.lan("alpha", ends_with=None)
    containers = launch(here.nodes, lan.plan(("alpha",)))
    happenings = follow(containers, RunRecord("r"), tick_s=0.001)
    assert isinstance(next(happenings), Tick)
    here.nodes["alpha"].engine.finish(containers[0].id, 0)
    assert [type(last) for last in happenings if not isinstance(last, Tick)] == [ContainerExited]


@pytest.mark.parametrize("code", [0, 1])
def test_an_event_is_no_line_of_a_failure(code: int) -> None:
    run = watch(lan.lan(*THREE, says=(event("step", step=1),), ends_with=code))
    assert run.outcome.failure is None or run.outcome.failure.lines == ()
    assert (run.outcome.failure is None) == (code == 0)
