"""A live model of machines and their run: what it knows, and what it says that it does not know."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contract.event_lines import encode_event
from contract.events import Event, RankFailed, ResourcesSampled, Restarting, StepDone, TrainingDone
from contract.resources import ResourceUsage
from orchestrator.render.live import LINES, LONGEST, LOSSES, SILENT_S, LiveModel, LiveNode, LiveSnapshot
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.past_run import PastRun
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import (
    ContainerExited,
    ContainerRemoved,
    NodeBack,
    NodeLost,
    NodeSampled,
    NodeSilent,
    RunFound,
    RunLine,
    Tick,
)
from tests.lan import moment

NAMES = ("alpha", "beta", "gamma")
USAGE = ResourceUsage(cpu_percent=40.0, cpus=2.0, ram_used_mib=1024, ram_limit_mib=4096)
AT = 1767366000.0
"""2026-01-02T15:00:00Z, as `moment(0)`."""


def run(**changes: Any) -> Run:
    members = tuple(
        Member(node=name, node_rank=rank, state=State.RUNNING, container=_container("running"))
        for rank, name in enumerate(NAMES)
    )
    values: dict[str, Any] = {
        "run_id": "r1", "project": "p", "attempt": 1, "user": "ana", "started_at": moment(0), "nnodes": 3,
        "command": "gpt2", "master": "alpha", "members": members,
    }  # fmt: skip
    return Run(**{**values, **changes})


def _container(status: str, **changes: Any) -> ContainerFacts:
    return ContainerFacts(id="c", name="orch-run", image="i", labels={}, status=status, **changes)


class Watched:
    """A model of three nodes, with clocks that the test sets."""

    def __init__(self) -> None:
        self.now, self.wall = 1000.0, AT
        self.model = LiveModel(NAMES, clock=lambda: self.now, wall=lambda: self.wall)
        self.second = 0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def says(self, node: str, what: Event | str, *, rank: int | None = 0, second: float | None = None) -> None:
        self.second += 1
        text = what if isinstance(what, str) else encode_event(what)
        time = moment(self.second if second is None else second)
        self.model.add(RunLine(time=time, node=node, node_rank=NAMES.index(node), rank=rank, text=text))

    def sample(self, *names: str) -> None:
        for name in names or NAMES:
            self.model.add(NodeSampled(node=name, usage=USAGE))

    @property
    def shown(self) -> LiveSnapshot:
        return self.model.snapshot()

    def node(self, name: str) -> LiveNode:
        return next(node for node in self.shown.nodes if node.name == name)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def running(watched: Watched) -> Watched:
    watched.model.add(RunFound(run=run()))
    watched.sample()
    return watched


def test_nothing_is_known_at_first(watched: Watched) -> None:
    shown = watched.shown
    assert (shown.run, shown.looked) == (None, False)
    assert {(node.state, node.silent, node.heard_s, node.usage) for node in shown.nodes} == {
        ("connecting", False, None, None)
    }
    assert not watched.model.settled


def test_a_fleet_without_a_run(watched: Watched) -> None:
    watched.model.add(RunFound())
    watched.sample("alpha", "beta")
    watched.model.add(NodeSilent(node="gamma", error=NodeUnreachableError("no answer in 5 s", node="gamma")))
    assert [(node.state, node.silent, node.problem) for node in watched.shown.nodes] == [
        ("idle", False, ""), ("idle", False, ""), ("no answer", True, "no answer in 5 s"),
    ]  # fmt: skip
    assert watched.shown.run is None
    assert watched.model.settled


def test_step_loss_speed_and_the_time_that_is_left(running: Watched) -> None:
    for step in (10, 20):
        running.says("alpha", StepDone(step=step, loss=3.0 - step / 20, per_s=640.0, unit="tokens", final_step=100,
                                       remaining_s=80.0, others={"waiting": 0.1, "exchanging": 0.25}))  # fmt: skip
    running.wait(3)
    running.sample()
    live = running.shown.run
    assert live is not None
    assert (live.run_id, live.state, live.step, live.final_step, live.progress) == ("r1", "running", 20, 100, 0.2)
    assert (live.loss, live.losses, live.per_s, live.unit) == (2.0, (2.5, 2.0), 640.0, "tokens")
    assert (live.waiting, live.exchanging) == (0.1, 0.25)
    assert live.remaining_s == pytest.approx(80 - 3, abs=3)  # the second step was 2 s after the time of day here


def test_the_time_that_is_left_decreases_while_no_step_comes(running: Watched) -> None:
    running.says("alpha", StepDone(step=10, final_step=100, remaining_s=30.0))
    for seconds, left in ((0, 30), (10, 20), (25, 0)):
        running.wait(seconds)
        running.sample()
        live = running.shown.run
        assert live is not None
        assert live.remaining_s == pytest.approx(left, abs=1)


@pytest.mark.parametrize(("seconds", "heard"), [(SILENT_S + 1, ("alpha", "beta")), (120.0, NAMES)])
def test_the_time_that_is_left_is_not_known_while_the_run_stands_still(
    running: Watched, seconds: float, heard: tuple[str, ...]
) -> None:
    running.says("alpha", StepDone(step=10, final_step=100, remaining_s=3000.0))
    running.wait(seconds)
    running.sample(*heard)
    assert running.shown.run is not None
    assert running.shown.run.remaining_s is None


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0, -5e9, 5e12])
def test_a_clock_that_jumps_changes_no_age(running: Watched, jump_s: float) -> None:
    running.says("alpha", StepDone(step=10, final_step=100, remaining_s=30.0))
    before = running.shown
    running.wall += jump_s
    running.sample()
    running.says("alpha", StepDone(step=11, final_step=100, remaining_s=29.0))
    after = running.shown
    assert [node.silent for node in after.nodes] == [node.silent for node in before.nodes]
    assert after.run is not None
    assert (after.run.step, after.run.remaining_s, after.run.step_age_s) == (11, 29.0, 0.0)


def test_a_killed_node_is_silent_within_five_seconds_and_comes_back(running: Watched) -> None:
    running.wait(SILENT_S + 0.1)
    running.sample("alpha", "beta")
    assert SILENT_S + 0.5 < 5
    gamma = running.node("gamma")
    assert (gamma.silent, gamma.state, gamma.heard_s) == (True, "running", pytest.approx(SILENT_S + 0.1))
    assert gamma.usage == USAGE  # the last that is known, with its age
    assert gamma.usage_age_s == gamma.heard_s
    assert running.model.silent() == {"gamma"}
    running.sample("gamma")
    assert running.model.silent() == frozenset()


def test_a_lost_connection_is_silence_at_once(running: Watched) -> None:
    running.model.add(NodeLost(node="beta", node_rank=1, error=NodeUnreachableError("cut\x1b[2J", node="beta")))
    assert (running.node("beta").silent, running.node("beta").problem) == (True, "cut")
    running.model.add(NodeBack(node="beta", node_rank=1, container="c"))
    assert (running.node("beta").silent, running.node("beta").problem) == (False, "")
    assert [fault.text for fault in running.shown.faults] == ["beta no longer answers: cut", "beta answers again"]


def test_the_state_of_the_run_follows_its_containers(running: Watched) -> None:
    running.model.add(ContainerExited(node="alpha", node_rank=0, container=_container("exited", exit_code=0)))
    assert running.shown.run is not None
    assert running.shown.run.state == "running"
    running.model.add(ContainerExited(node="beta", node_rank=1, container=_container("exited", exit_code=1)))
    assert running.shown.run.state == "failed"
    assert (running.node("beta").state, running.node("beta").problem) == ("failed", "exit code 1")
    running.model.add(ContainerRemoved(node="gamma", node_rank=2))
    assert running.node("gamma").state == "lost"
    assert [fault.text for fault in running.shown.faults] == [
        "the container on beta has ended: exit code 1",
        "the container on gamma was removed",
    ]


def test_a_container_that_was_created_runs_once_it_has_written_a_line(watched: Watched) -> None:
    members = tuple(Member(node=name, node_rank=rank, state=State.CREATED) for rank, name in enumerate(NAMES))
    watched.model.add(RunFound(run=run(members=members)))
    assert {node.state for node in watched.shown.nodes} == {"created"}
    for name in NAMES:
        watched.says(name, "hello")
    assert {node.state for node in watched.shown.nodes} == {"running"}


def test_faults_so_far(running: Watched) -> None:
    running.says("beta", RankFailed(rank=1, error="ValueError", message="x\x1b[2J"), rank=1)
    running.says("alpha", Restarting(node="beta", rank=1, reason="ValueError", restarts_left=2), rank=None)
    running.says("beta", Restarting(node="beta", rank=1, reason="ValueError", restarts_left=2), rank=None)
    assert [fault.text for fault in running.shown.faults] == [
        "rank 1 on beta: ValueError: x",
        "rank 1 on beta: ValueError; restarting all ranks (restarts left: 2)",
    ]
    assert running.shown.run is not None
    assert running.shown.run.restarts == 1


def test_the_straggler_has_a_reason(running: Watched) -> None:
    running.says("alpha", StepDone(step=5, compute_s={"alpha": 0.5, "beta": 0.5, "gamma": 1.5}))
    assert running.shown.run is not None
    assert running.shown.run.straggler is not None
    assert (running.shown.run.straggler.node, running.shown.run.straggler.reason) == ("gamma", "compute")
    assert running.node("gamma").compute_s == 1.5


def test_a_line_that_was_read_before_counts_once(running: Watched) -> None:
    running.says("alpha", StepDone(step=5, loss=1.0), second=10)
    running.says("alpha", StepDone(step=4, loss=9.0), second=9)
    running.says("alpha", StepDone(step=5, loss=1.0), second=10)
    assert running.shown.run is not None
    assert (running.shown.run.step, running.shown.run.losses, running.node("alpha").lines) == (5, (1.0,), 1)


def test_the_event_of_ten_seconds_counts_where_no_sample_comes(running: Watched) -> None:
    other = ResourceUsage(cpu_percent=90.0, cpus=2.0, ram_used_mib=1, ram_limit_mib=2)
    running.says("alpha", ResourcesSampled(usage=other), rank=None)
    assert running.node("alpha").usage == USAGE
    running.wait(SILENT_S + 1)
    running.says("alpha", ResourcesSampled(usage=other), rank=None)
    assert running.node("alpha").usage == other


def test_any_number_of_lines_takes_bounded_memory(running: Watched) -> None:
    last = 10 * LINES
    for number in range(1, last + 1):
        line = RunLine(
            time=f"{number:09d}", node="beta", node_rank=1, rank=1, text=f"line {number} \x1b[2J" + "x" * 5000
        )
        running.model.add(line)
    kept = running.model.tail("beta")
    assert (len(kept), kept[0].number, kept[-1].number) == (LINES, last + 1 - LINES, last)
    assert {len(line.text) <= LONGEST and "\x1b" not in line.text for line in kept} == {True}
    assert [line.number for line in running.model.tail("beta", last - 2)] == [last - 1, last]
    for step in range(1, 1000):
        running.says("alpha", StepDone(step=step, loss=1.0))
    assert running.shown.run is not None
    assert len(running.shown.run.losses) == LOSSES


def test_another_run_begins_without_the_figures_of_the_last(running: Watched) -> None:
    running.says("alpha", StepDone(step=5, loss=1.0))
    running.model.add(RunFound(run=run(run_id="r2")))
    assert running.shown.run is not None
    assert (running.shown.run.run_id, running.shown.run.step, running.shown.run.losses) == ("r2", None, ())


def test_an_older_run_after_a_newer_one_is_read_from_its_own_lines(running: Watched) -> None:
    running.says("alpha", StepDone(step=40, final_step=400), second=500)
    running.model.add(ContainerExited(node="beta", node_rank=1, container=_container("exited", exit_code=137)))
    line = RunLine(
        time=moment(9), node="alpha", node_rank=0, rank=0, text=encode_event(TrainingDone(step=300, final_step=300))
    )
    ended = tuple(replace(member, state=State.SUCCEEDED) for member in run().members)
    running.model.add(RunFound(run=run(run_id="r0", members=ended), lines=(line,)))
    found = running.shown.run
    assert found is not None
    assert (found.run_id, found.state, found.step, found.progress) == ("r0", "succeeded", 300, 1.0)
    assert (running.shown.faults, [node.problem for node in running.shown.nodes]) == ((), ["", "", ""])


def test_before_the_first_step_the_newest_line_of_a_rank_says_what_it_does(watched: Watched) -> None:
    watched.model.add(RunFound(run=run()))
    watched.says("beta", "joined", rank=1)
    watched.says("alpha", "compiling for 12 s")
    watched.says("alpha", "a line of the agent", rank=None)
    assert watched.shown.run is not None
    assert watched.shown.run.said == "rank 0: compiling for 12 s"
    watched.says("alpha", StepDone(step=1, final_step=400))
    assert watched.shown.run is not None
    assert watched.shown.run.said == ""


def test_after_a_restart_the_figures_before_it_do_not_count(running: Watched) -> None:
    running.says("alpha", StepDone(step=40, final_step=400, remaining_s=90.0, compute_s={"alpha": 0.3}))
    running.says("alpha", Restarting(node="beta", outcome="infrastructure", reason="gone", generation=1), rank=None)
    now = running.shown
    assert now.run is not None
    assert (now.run.restarting, now.run.step, now.run.remaining_s, now.nodes[0].compute_s) == (True, 40, None, None)
    running.says("alpha", StepDone(step=41, final_step=400, remaining_s=80.0))
    assert running.shown.run is not None
    assert (running.shown.run.restarting, running.shown.run.remaining_s) == (False, 80.0)


def test_a_run_that_is_only_on_record(watched: Watched) -> None:
    past = PastRun(
        run_id="r0", state="failed", reason="rank 1: ValueError", as_of=moment(0), started_at=moment(0), command="gpt2",
        nodes=NAMES, last_event=StepDone(step=7, loss=2.0, final_step=9), forecast=None, unreachable={},
    )  # fmt: skip
    watched.model.add(RunFound(past=past))
    live = watched.shown.run
    assert live is not None
    assert (live.run_id, live.state, live.reason, live.step, live.loss) == ("r0", "failed", past.reason, 7, 2.0)
    assert (live.step_age_s, live.remaining_s) == (None, None)


def test_events_of_strangers_change_nothing(running: Watched) -> None:
    before = running.shown
    running.model.add(NodeSampled(node="mallory", usage=USAGE))
    running.model.add(RunLine(time=moment(9), node="mallory", node_rank=0, rank=0, text="x"))
    running.model.add(Tick())
    assert running.shown == before


def test_a_snapshot_is_json(running: Watched) -> None:
    running.says(
        "alpha", StepDone(step=5, loss=1.0, final_step=10, compute_s={"alpha": 0.5, "beta": 0.5, "gamma": 5.0})
    )
    running.model.add(NodeLost(node="beta", node_rank=1, error=NodeUnreachableError("cut", node="beta")))
    data = json.loads(json.dumps(running.shown.data(), allow_nan=False))
    assert data["run"]["progress"] == 0.5
    assert data["run"]["straggler"]["node"] == "gamma"
    assert data["nodes"][1]["silent"] is True
    assert data["nodes"][0]["usage"]["cpu_percent"] == 40.0
    assert set(data) == {"at", "run", "looked", "nodes", "faults"}
