"""Decisions of the nodes together, by a clock of the tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.events import LivenessReported, NodesRecovered, NodesStalled, WaitingForNodes
from contract.failures.owners import Outcome
from contract.rank_signs import MOST_RANKS, RankSigns
from trainer.agent.coordinator import (
    LONG_SETTLE_S,
    LONGEST_PAUSE_S,
    REMIND_S,
    SETTLE_S,
    STALLED_S,
    Coordinator,
    EndRun,
    Notice,
    Order,
    ReportStacks,
    RestartPolicy,
    RestartRanks,
    StartRanks,
)
from trainer.agent.rank_exit import RankExit, read_rank_exit

NAMES = ("alpha", "beta", "gamma")


def rank_exit(kind: Outcome = "infrastructure", node: str = "beta", **values: object) -> RankExit:
    return RankExit(outcome=kind, node=node, **values)  # type: ignore[arg-type]  # any field


LOST = rank_exit(node="alpha", because_of_others=True, reason="Connection closed by peer")
KILLED = rank_exit(node="gamma", exit_code=-9, reason="ended by SIGKILL")
DONE = rank_exit("done")


@dataclass
class Meeting:
    """A coordinator, and the time."""

    coordinator: Coordinator = field(default_factory=lambda: Coordinator(names=NAMES, policy=RestartPolicy(restarts=2)))
    now: float = 100.0

    def __post_init__(self) -> None:
        self.coordinator.open(self.now)

    def all_ready(self) -> list[Order]:
        return [order for rank in range(3) for order in self.coordinator.ready(rank, 0, self.now)]

    def after(self, seconds: float, *alive: int) -> list[Order]:
        self.now += seconds
        received = [order for rank in alive for order in self.coordinator.alive(rank, self.now)]
        return [*received, *self.coordinator.tick(self.now)]

    def ended(self, rank: int, how: RankExit) -> list[Order]:
        return self.coordinator.ended(rank, how, self.now)


def begun() -> Meeting:
    meeting = Meeting()
    assert meeting.all_ready() == [StartRanks(generation=1)]
    return meeting


def test_no_node_starts_before_all_are_there() -> None:
    meeting = Meeting()
    assert meeting.coordinator.ready(2, 0, meeting.now) == []
    assert meeting.coordinator.ready(0, 0, meeting.now) == []
    assert meeting.after(REMIND_S) == [Notice(event=WaitingForNodes(nodes=("beta",), seconds=10))]
    assert meeting.after(1) == []
    assert meeting.coordinator.ready(1, 0, meeting.now) == [StartRanks(generation=1)]


def test_who_never_comes_is_named_at_the_end() -> None:
    meeting = Meeting()
    meeting.coordinator.ready(0, 0, meeting.now)
    meeting.coordinator.ready(1, 0, meeting.now)
    (*_, over) = meeting.after(901)
    assert isinstance(over, EndRun)
    assert (over.rank_exit.node, over.rank_exit.outcome) == ("gamma", "infrastructure")
    assert "901 s" in over.rank_exit.reason
    assert meeting.after(1) == []


def test_all_done_is_over() -> None:
    meeting = begun()
    assert [meeting.ended(rank, DONE) for rank in (1, 0)] == [[], []]
    assert meeting.after(100, 1, 2) == []  # the last may take its time
    assert meeting.ended(2, DONE) == [EndRun(rank_exit=DONE)]


def test_a_killed_rank_is_the_cause_whoever_speaks_first() -> None:
    meeting = begun()
    assert meeting.ended(0, LOST) == []
    assert meeting.after(SETTLE_S * 2) == []  # somebody else has more to say
    assert meeting.ended(2, KILLED) == [RestartRanks(generation=2, cause=KILLED, restarts_left=1, pause_s=1.0)]
    assert meeting.all_ready() == []  # not before the pause is over
    assert meeting.after(1.0) == [StartRanks(generation=2)]


def test_where_all_only_lost_somebody_it_does_not_wait_for_ever() -> None:
    meeting = begun()
    meeting.ended(0, LOST)
    (again,) = meeting.after(LONG_SETTLE_S)
    assert isinstance(again, RestartRanks)
    assert again.cause == LOST


@pytest.mark.parametrize("kind", ["user", "configuration"])
def test_what_a_person_must_fix_is_not_tried_again(kind: Outcome) -> None:
    meeting = begun()
    meeting.ended(0, LOST)
    own = rank_exit(kind, "beta", rank=1, reason="ValueError: no")
    assert [*meeting.ended(1, own), *meeting.after(SETTLE_S)] == [EndRun(rank_exit=own)]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: unknown error",
        "RuntimeError: Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost",
        "NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "RuntimeError: write(): fd 29 failed with Input/output error",
    ],
)
def test_what_another_try_can_repair_is_tried_again(line: str) -> None:
    """The script's own output decides: nothing of it is the user's error."""
    meeting = begun()
    broken = read_rank_exit("beta", 1, [f"[rank1]: {line}"], first_rank=1)
    assert (broken.outcome, broken.because_of_others) == ("infrastructure", False)
    meeting.ended(0, LOST)
    (again,) = [*meeting.ended(1, broken), *meeting.after(SETTLE_S)]
    assert isinstance(again, RestartRanks)
    assert again.cause == broken


MESH = "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] Connect timeout"


def test_closed_ports_end_the_run_unless_another_ranks_end_explains_them() -> None:
    mesh = read_rank_exit("alpha", 1, [f"[rank0]: {MESH}"], first_rank=0)
    assert (mesh.outcome, mesh.because_of_others) == ("configuration", True)
    meeting = begun()
    meeting.ended(0, mesh)
    assert meeting.after(LONG_SETTLE_S) == [EndRun(rank_exit=mesh)]
    meeting = begun()
    meeting.ended(0, mesh)
    (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
    assert isinstance(again, RestartRanks)
    assert again.cause == KILLED
    assert meeting.ended(1, mesh) == []  # told too late: it follows from the end that was decided on


def test_a_users_error_reported_too_late_is_reported_all_the_same() -> None:
    """Its node was cut off when it failed, and the others are gathering for the next try."""
    meeting = begun()
    meeting.coordinator.gone(1, meeting.now)
    meeting.after(SETTLE_S)
    own = rank_exit("user", "beta", reason="ValueError: no")
    assert meeting.ended(1, own) == [EndRun(rank_exit=own)]


def test_restarts_are_used_up_unless_there_is_progress() -> None:
    meeting = begun()
    for left in (1, 0):
        (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
        assert isinstance(again, RestartRanks)
        assert again.restarts_left == left
        meeting.all_ready()
        meeting.after(LONGEST_PAUSE_S)
    meeting.coordinator.progressed()
    (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
    assert isinstance(again, RestartRanks)
    meeting.all_ready()
    meeting.after(LONGEST_PAUSE_S)
    for _ in range(2):
        orders = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
        meeting.all_ready()
        meeting.after(LONGEST_PAUSE_S)
    assert orders == [EndRun(rank_exit=KILLED)]


def test_a_node_that_leaves_in_order_is_waited_for_and_costs_no_restart() -> None:
    """Its machine shuts down: ranks have written their checkpoint, and the others' have ended well."""
    meeting = begun()
    stopped = rank_exit("stopped", "gamma")
    meeting.ended(0, DONE)
    meeting.ended(1, DONE)
    (again,) = meeting.ended(2, stopped)
    assert (
        again == RestartRanks(generation=2, cause=stopped, restarts_left=2, pause_s=0.0)
        or again.cause.outcome == "done"
    )
    assert meeting.coordinator.over is None


def test_a_short_silence_is_reported_and_nothing_is_broken() -> None:
    meeting = begun()
    assert meeting.after(STALLED_S + 1, 1) == [Notice(event=NodesStalled(nodes=("gamma",), seconds=9))]
    assert meeting.after(1, 1) == []
    assert meeting.after(1, 1, 2) == [Notice(event=NodesRecovered(nodes=("gamma",)))]


def test_a_long_silence_is_a_loss_and_the_others_wait() -> None:
    meeting = begun()
    for _ in range(6):
        orders = meeting.after(10.0, 1)
    assert orders == []
    orders = [*meeting.after(1.0, 1), *meeting.after(SETTLE_S, 1)]
    (again,) = (order for order in orders if isinstance(order, RestartRanks))
    assert (again.cause.node, again.cause.reason) == ("gamma", "no word from it for 61 s")
    meeting.coordinator.ready(0, 1, meeting.now)
    meeting.coordinator.ready(1, 1, meeting.now)
    assert all(isinstance(order, Notice) for order in meeting.after(60, 1))
    assert meeting.coordinator.ready(2, 1, meeting.now) == [StartRanks(generation=2)]


def test_a_container_that_is_back_before_its_loss_was_noticed() -> None:
    meeting = begun()
    assert meeting.coordinator.ready(2, 0, meeting.now) == []
    (again,) = meeting.after(SETTLE_S)
    assert isinstance(again, RestartRanks)
    assert again.cause.node == "gamma"


def test_a_coordinator_that_was_killed_learns_where_the_others_are() -> None:
    meeting = Meeting()
    meeting.coordinator.ready(1, 7, meeting.now)
    meeting.coordinator.ready(2, 7, meeting.now)
    assert meeting.coordinator.ready(0, 0, meeting.now) == [StartRanks(generation=8)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "alive", "gone", "killed", "lost", "done", "user", "pause"]), st.integers(0, 2)
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens(steps: list[tuple[str, int]]) -> None:
    """No start while a rank runs, generations only rise, nothing after the end, and it always comes to one."""
    meeting, coordinator = Meeting(), Coordinator(names=NAMES, policy=RestartPolicy(restarts=2))
    meeting.coordinator = coordinator
    coordinator.open(meeting.now)
    running, generation, over = set[int](), 0, 0
    ends = {"killed": KILLED, "lost": LOST, "done": DONE, "user": rank_exit("user")}
    for word, rank in [*steps, ("pause", 0)]:
        if word == "pause":
            orders = meeting.after(20.0)
        elif word == "ready":
            running.discard(rank)
            orders = coordinator.ready(rank, generation, meeting.now)
        elif word == "alive":
            orders = coordinator.alive(rank, meeting.now)
        elif word == "gone":
            running.discard(rank)
            orders = coordinator.gone(rank, meeting.now)
        else:
            running.discard(rank)
            orders = coordinator.ended(rank, ends[word], meeting.now)
        for order in orders:
            if isinstance(order, StartRanks):
                assert order.generation > generation
                assert not running
                generation, running = order.generation, {0, 1, 2}
            elif isinstance(order, RestartRanks):
                assert order.restarts_left >= 0
                running = set()
            elif isinstance(order, EndRun):
                over += 1
    for _ in range(200):
        if coordinator.over:
            break
        over += sum(isinstance(order, EndRun) for order in meeting.after(30.0))
    assert (over, coordinator.over is not None) == (1, True)


GROUPS = {"0": (156, 155)}
WAITS = RankSigns(rank=0, world=3, age_s=0.5, optimizer_steps=90, groups=GROUPS, call="all_reduce", cpu=0.0)
IDLE = RankSigns(rank=1, world=3, age_s=0.5, optimizer_steps=90, line="data.py:40 in fetch", cpu=0.0)


@dataclass
class Watched:
    """A meeting whose nodes report their only ranks every ten seconds."""

    meeting: Meeting
    signs: dict[int, RankSigns]

    def after(self, seconds: int) -> list[Order]:
        orders: list[Order] = []
        for _ in range(0, seconds, 10):
            for node, one in self.signs.items():
                generation = self.meeting.coordinator.generation
                orders += self.meeting.coordinator.signs(node, generation, [one], self.meeting.now)
            for _ in range(5):
                orders += self.meeting.after(2, 0, 1, 2)
        return orders


def watched(hang_s: float = 0.0, *, rank: RankSigns = IDLE, third: RankSigns | None = None) -> Watched:
    policy = RestartPolicy(restarts=1, hang_s=hang_s, silence_s=1000)
    meeting = Meeting(Coordinator(names=NAMES, policy=policy))
    meeting.all_ready()
    return Watched(meeting, {0: WAITS, 1: rank, 2: third or replace(WAITS, rank=2)})


def rules_of(orders: list[Order]) -> list[str | None]:
    events = [order.event for order in orders if isinstance(order, Notice)]
    return [event.rule for event in events if isinstance(event, LivenessReported)]


def test_the_coordinator_reports_the_rank_that_the_others_wait_for_and_asks_for_stacks() -> None:
    run = watched()
    assert run.after(50) == []
    orders = run.after(20)
    assert [type(order) for order in orders] == [Notice, ReportStacks]
    (event,) = [order.event for order in orders if isinstance(order, Notice)]
    assert isinstance(event, LivenessReported)
    assert (event.rule, event.ranks, event.nodes, event.fault) == ("idle", (1,), ("beta",), True)
    assert event.text == ("rank 1 on beta has been idle at data.py:40 in fetch for 60 s; ranks 0, 2 are waiting for it")
    run.signs[1] = replace(IDLE, optimizer_steps=91)
    assert rules_of(run.after(20)) == [""]


def test_a_hang_restarts_all_where_ranks_are_stuck_and_never_because_a_script_prints_nothing() -> None:
    run = watched(90)
    orders = run.after(120)
    (order,) = [one for one in orders if isinstance(one, RestartRanks)]
    assert (order.cause.node, order.cause.rank, order.cause.cause) == ("beta", 1, "code.hung")
    assert order.cause.reason.startswith(
        "hung: no rank made progress for 90 s: rank 1 on beta has been idle at data.py"
    )
    run.meeting.now += order.pause_s
    assert [type(one) for one in run.meeting.all_ready()] == [StartRanks]
    assert any(isinstance(one, EndRun) for one in run.after(120))
    computing = replace(IDLE, cpu=0.98)
    assert rules_of(watched(90, rank=computing).after(400)) == ["computing", "computing", "computing"]
    quiet = [replace(computing, rank=rank) for rank in range(3)]
    silent = Watched(watched(90).meeting, dict(enumerate(quiet)))
    assert silent.after(600) == []


def test_a_left_out_rank_does_not_switch_the_detection_off() -> None:
    """A left out rank sends a heartbeat every second for as long as it lives."""
    left_out = replace(IDLE, rank=2, exchange="left-out", left_out=True)
    run = watched(90, third=left_out)
    for work in range(12):
        run.signs[2] = replace(left_out, work=work)
        if any(isinstance(order, RestartRanks) for order in run.after(10)):
            return
    raise AssertionError("no restart")


def test_a_node_that_has_not_reported_is_unknown_and_an_older_generation_counts_for_nothing() -> None:
    run = watched(90)
    del run.signs[2]
    assert run.after(300) == []
    late = watched(90)
    late.meeting.coordinator.signs(0, 7, [WAITS], late.meeting.now)
    assert late.meeting.coordinator._nodes[0].signs == ()


def test_a_node_speaks_for_its_own_ranks_alone() -> None:
    coordinator = watched().meeting.coordinator
    coordinator.signs(0, 1, [WAITS], 100)
    coordinator.signs(1, 1, [replace(WAITS, node="alpha"), IDLE], 100)
    assert [(one.rank, one.node) for one in coordinator._nodes[1].signs] == [(1, "beta")]


def test_a_node_names_no_rank_twice_and_not_more_than_it_can_have() -> None:
    coordinator = watched().meeting.coordinator
    for begin in range(0, 3000, 200):
        coordinator.signs(1, 1, [replace(IDLE, rank=rank) for rank in (*range(begin, begin + 200), begin)], 100)
    assert len(coordinator._nodes[1].ranks) == MOST_RANKS
    coordinator.signs(1, 1, [IDLE, IDLE], 100)
    assert len(coordinator._nodes[1].signs) == 1


def test_the_last_line_of_a_run_names_models_that_were_trained_apart() -> None:
    meeting = Meeting()
    meeting.all_ready()
    steps = [RankSigns(rank=rank, world=3, age_s=0.5, optimizer_steps=9, line="a.py:1") for rank in range(3)]
    for rank, one in enumerate(steps):
        meeting.coordinator.signs(rank, 1, [one], meeting.now)
    meeting.after(10)
    for rank, one in enumerate(steps):
        meeting.coordinator.signs(rank, 1, [replace(one, optimizer_steps=80)], meeting.now)
        orders = meeting.ended(rank, replace(DONE, node=NAMES[rank]))
    (order,) = orders
    assert isinstance(order, EndRun)
    assert order.rank_exit.note.startswith("! each rank trains its own model: 71 optimizer steps, nothing exchanged")
