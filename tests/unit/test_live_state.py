"""Machines and their run from facts as they come: what a screen shows of them at each moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contract.event_lines import encode_event
from contract.event_values import RankPosition
from contract.events import (
    Event,
    GenerationStarted,
    LivenessReported,
    OutputProgress,
    RankFailed,
    ResourcesSampled,
    Restarting,
    StepDone,
)
from contract.resources import ResourceUsage
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import (
    ContainerSeen,
    JournalRead,
    LineRead,
    NodeAnswered,
    NodeUnanswered,
    RunFound,
    RunSeen,
)
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import ClaimEntry, StartedEntry
from orchestrator.state.limits import LINE_CHARS, NODE_SILENT_S, TAIL
from orchestrator.state.phase import Phase
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.watch.fleet_view import FleetView
from orchestrator.watch.live import LiveState
from orchestrator.watch.run_lines import run_lines
from orchestrator.watch.views import NodeView, RunView
from tests import run_streams
from tests.each_case import failures_of
from tests.lan import moment
from tests.run_streams import CASES, RUN_ID, T0, Expected, Stream

NAMES = ("alpha", "beta", "gamma")
USAGE = ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=1024, ram_limit_mib=4096)
AT = 1767366000.0
"""2026-01-02T15:00:00Z, as `moment(0)`."""


def container(status: str = "running", **changes: Any) -> ContainerFacts:
    return ContainerFacts(id="c", name="orch-run", image="i", labels={}, status=status, **changes)


def run(**changes: Any) -> Run:
    members = tuple(
        Member(node=name, node_rank=rank, state=State.RUNNING, container=container()) for rank, name in enumerate(NAMES)
    )
    values: dict[str, Any] = {
        "run_id": "r1", "project": "p", "attempt": 1, "user": "ana", "started_at": moment(0), "nnodes": 3,
        "command": "gpt2", "master": "alpha", "members": members,
    }  # fmt: skip
    return Run(**{**values, **changes})


class Watched:
    """A state of three nodes, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = AT
        self.state = LiveState(NAMES, clock=lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def find(self, **changes: Any) -> None:
        """Find a run that is on record."""
        found = run(**changes)
        entries = (ClaimEntry(attempt=found.attempt, id="c", nodes=NAMES), StartedEntry(attempt=found.attempt))
        state = RunState(run_id=found.run_id)
        apply(state, JournalRead(seen=self.now, journal=fold(entries)))
        apply(state, RunSeen(seen=self.now, run=found))
        self.state.add(RunFound(state=state))

    def write(self, node: str, what: Event | str, *, rank: int | None = 0) -> None:
        """Write a line, a second after the one before."""
        self.now += 1
        text = what if isinstance(what, str) else encode_event(what)
        line = RunLine(time=moment(self.now - AT), node=node, node_rank=NAMES.index(node), rank=rank, text=text)
        self.state.add(LineRead(seen=self.now, line=line))

    def sample(self, *names: str) -> None:
        for name in names or NAMES:
            self.state.add(NodeAnswered(seen=self.now, node=name, usage=USAGE))

    def lose(self, node: str, error: str = "cut\x1b[2J") -> None:
        self.state.add(NodeUnanswered(seen=self.now, node=node, error=error))

    def end(self, node: str, code: int) -> None:
        self.state.add(ContainerSeen(seen=self.now, node=node, facts=container("exited", exit_code=code)))

    @property
    def shown(self) -> FleetView:
        return self.state.view()

    @property
    def run(self) -> RunView:
        found = self.shown.run
        assert found is not None
        return found

    def node(self, name: str) -> NodeView:
        return next(node for node in self.shown.nodes if node.name == name)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def running(watched: Watched) -> Watched:
    watched.find()
    watched.sample()
    return watched


def test_nothing_is_known_at_first(watched: Watched) -> None:
    shown = watched.shown
    assert (shown.run, shown.looked, shown.health.severity) == (None, False, "info")
    assert {(node.state, node.silent, node.answered_s, node.usage) for node in shown.nodes} == {
        ("connecting", False, None, None)
    }
    assert not watched.state.settled


def test_machines_without_a_run(watched: Watched) -> None:
    watched.state.add(RunFound())
    watched.sample("alpha", "beta")
    watched.lose("gamma")
    assert [(node.state, node.silent, node.problem) for node in watched.shown.nodes] == [
        ("idle", False, ""), ("idle", False, ""), ("no answer", True, "cut"),
    ]  # fmt: skip
    assert (watched.shown.run, watched.state.settled) == (None, True)
    health = watched.shown.health
    assert (health.severity, [line.command for line in health.lines]) == ("warning", ["orch doctor --nodes gamma"])
    watched.sample("gamma")
    assert watched.shown.health.fine == "All 3 nodes answer; nothing is wrong."


@pytest.mark.parametrize(("seconds", "names"), [(NODE_SILENT_S + 1, ("alpha", "beta")), (120.0, NAMES)])
def test_the_time_that_is_left_is_not_known_while_no_progress_is_seen(
    running: Watched, seconds: float, names: tuple[str, ...]
) -> None:
    running.write("alpha", StepDone(step=10, final_step=100, remaining_s=3000.0))
    assert running.run.progress.remaining_s == pytest.approx(3000)
    running.wait(seconds)
    running.sample(*names)
    assert running.run.progress.remaining_s is None


def test_a_node_that_stops_to_answer_is_silent_and_its_values_are_old(running: Watched) -> None:
    running.wait(NODE_SILENT_S + 0.1)
    running.sample("alpha", "beta")
    gamma = running.node("gamma")
    assert (gamma.silent, gamma.state, gamma.usage) == (True, "running", USAGE)
    assert gamma.usage_age_s == gamma.answered_s == pytest.approx(NODE_SILENT_S + 0.1)
    assert running.state.silent() == {"gamma"}
    running.sample("gamma")
    assert running.state.silent() == frozenset()


def test_what_happens_to_nodes_and_containers_is_among_the_faults(running: Watched) -> None:
    running.lose("beta")
    assert (running.node("beta").silent, running.node("beta").problem) == (True, "cut")
    running.lose("beta")
    running.sample("beta")
    running.end("beta", 1)
    running.state.add(ContainerSeen(seen=running.now, node="gamma", facts=None))
    assert [fault.text for fault in running.shown.faults] == [
        "beta does not answer this computer: cut", "beta answers again",
        "the container on beta has failed: exit code 1", "gamma has no container of the run",
    ]  # fmt: skip
    assert (running.node("beta").state, running.node("beta").problem) == ("failed", "exit code 1")
    assert running.node("gamma").state == "lost"
    running.end("alpha", 143)  # it was asked to stop, and did
    assert (running.node("alpha").state, len(running.shown.faults)) == ("stopped", 4)


def test_faults_of_ranks_are_in_order_of_time_with_those_of_nodes(running: Watched) -> None:
    running.write("beta", RankFailed(rank=1, error="ValueError", message="x\x1b[2J"), rank=1)
    for name in NAMES:
        running.write(name, Restarting(node="beta", rank=1, reason="ValueError", restarts_left=2), rank=None)
    running.lose("gamma")
    assert [fault.text for fault in running.shown.faults] == [
        "rank 1 on beta: ValueError: x",
        "rank 1 on beta: ValueError; restarting all ranks (restarts left: 2)",
        "gamma does not answer this computer: cut",
    ]
    assert (running.run.phase, running.run.restarts) == (Phase.RESTARTING, 1)


def test_progress_read_from_the_output_before_a_restart_is_not_current(running: Watched) -> None:
    running.write("alpha", GenerationStarted(node="alpha", generation=1), rank=None)
    running.write("alpha", OutputProgress(rank=0, epoch=3, epochs=10, per_s=2.0, unit="steps", remaining_s=90.0))
    assert (running.run.progress.is_before_restart, running.run.progress.remaining_s) == (False, pytest.approx(90))
    running.write("alpha", GenerationStarted(node="alpha", generation=2), rank=None)
    after = running.run
    assert (after.progress.is_before_restart, after.progress.remaining_s) == (True, None)
    assert after.output == "epoch 3/10   (read from its output)"


def test_a_script_that_prints_nothing_has_optimizer_steps(running: Watched) -> None:
    position = RankPosition(rank=0, step=1204, steps_per_s=3.1)
    running.write("alpha", ResourcesSampled(usage=USAGE, positions=(position,)), rank=None)
    assert running.run.progress.work == "1,204 optimizer steps · 3.1/s"


def test_a_report_that_is_repeated_is_one_fault(running: Watched) -> None:
    for _ in range(3):
        running.write("alpha", LivenessReported(rule="stopped", fault=True, text="rank 1 is stopped"), rank=None)
    assert [fault.text for fault in running.shown.faults] == ["rank 1 is stopped"]


def test_the_node_that_the_others_wait_for_has_a_note(running: Watched) -> None:
    running.write("alpha", StepDone(step=5, compute_s={"alpha": 0.5, "beta": 0.5, "gamma.0": 1.0, "gamma.1": 1.5}))
    gamma = running.node("gamma")
    assert (gamma.slow, gamma.note, gamma.compute_s) == ("compute", "slowest: compute", 1.5)
    assert [one.command for one in running.run.conditions if one.node] == [
        f"orch restart {running.run.run_id} --nodes alpha,beta   # without gamma"
    ]


def test_log_lines_are_bounded_and_their_numbers_begin_again_with_an_attempt(running: Watched) -> None:
    last = 2 * TAIL
    for number in range(1, last + 1):
        running.write("beta", f"line {number} \x1b[2J" + "x" * 5000, rank=1)
    lines = running.state.tail("beta")
    assert (len(lines), lines[0].number, lines[-1].number) == (TAIL, last + 1 - TAIL, last)
    assert {len(line.text) <= LINE_CHARS and "\x1b" not in line.text for line in lines} == {True}
    assert [line.number for line in running.state.tail("beta", last - 2)] == [last - 1, last]
    running.find(attempt=2)
    running.write("beta", "hello", rank=1)
    assert [(line.number, line.text) for line in running.state.tail("beta", last)] == [(1, "hello")]


def test_another_run_begins_without_the_figures_and_faults_of_the_last(running: Watched) -> None:
    running.write("alpha", StepDone(step=5, loss=1.0))
    running.end("beta", 137)
    running.find(run_id="r2")
    assert (running.run.run_id, running.run.progress.step, running.run.progress.losses) == ("r2", None, ())
    assert (running.shown.faults, [node.problem for node in running.shown.nodes]) == ((), ["", "", ""])
    assert running.node("alpha").usage == USAGE  # the machines are the same


def test_a_run_stays_while_the_nodes_that_hold_it_do_not_answer(running: Watched) -> None:
    running.state.add(RunFound(unreachable=NAMES))
    assert running.run.run_id == "r1"
    running.state.add(RunFound())
    assert running.shown.run is None


def test_before_the_first_step_the_newest_line_of_a_rank_shows_what_it_does(running: Watched) -> None:
    running.write("beta", "joined", rank=1)
    running.write("alpha", "compiling for 12 s")
    running.write("alpha", "a line of the agent", rank=None)
    assert running.run.progress.last_line == "rank 0: compiling for 12 s"
    running.write("alpha", StepDone(step=1, final_step=400))
    assert running.run.progress.last_line == ""


def test_a_view_is_json(running: Watched) -> None:
    running.write(
        "alpha", StepDone(step=5, loss=1.0, final_step=10, compute_s={"alpha": 0.5, "beta": 0.5, "gamma": 5.0})
    )
    running.lose("beta")
    data = json.loads(json.dumps(running.shown.data(), allow_nan=False))
    assert (data["run"]["progress"], data["run"]["state"], data["run"]["severity"]) == (0.5, "running", "warning")
    assert {one["code"] for one in data["run"]["conditions"]} == {"node_silent", "slow_compute"}
    assert (data["nodes"][1]["silent"], data["nodes"][2]["slow"]) == (True, "compute")
    assert data["nodes"][0]["usage"]["cpu_percent"] == 40.0
    assert set(data) == {"at", "run", "looked", "nodes", "faults", "health"}


def test_each_beginning_of_each_stream_has_a_view() -> None:
    """A screen can be drawn whatever has been read so far, and what it shows is JSON without control characters."""

    def check(make: Callable[[], Stream], expected: Expected) -> None:
        live = LiveState(run_streams.NAMES, clock=lambda: T0 + expected.at)
        live.add(RunFound(state=RunState(run_id=RUN_ID)))
        for fact in make().facts:
            live.add(fact)
            view = live.view()
            text = json.dumps(view.data(), allow_nan=False, ensure_ascii=False)
            assert text.isprintable()
            assert run_lines(view, 60)

    assert failures_of(check, CASES) == []
