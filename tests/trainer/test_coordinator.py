"""What the nodes decide together, by a clock that the tests hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.failures.owners import Outcome
from trainer.agent.coordinator import (
    LONGEST_PAUSE_S,
    PATIENT_SETTLE_S,
    REMIND_S,
    SETTLE_S,
    STALLED_S,
    Again,
    Council,
    Go,
    Order,
    Over,
    Patience,
    Tell,
)
from trainer.agent.rank_exit import Ending, read_ending

NAMES = ("alpha", "beta", "gamma")


def ending(kind: Outcome = "infrastructure", node: str = "beta", **values: object) -> Ending:
    return Ending(kind=kind, node=node, **values)  # type: ignore[arg-type]  # any field


LOST = ending(node="alpha", because_of_others=True, reason="Connection closed by peer")
KILLED = ending(node="gamma", exit_code=-9, reason="ended by SIGKILL")
DONE = ending("done")


@dataclass
class Meeting:
    """A council, and the time."""

    council: Council = field(default_factory=lambda: Council(names=NAMES, patience=Patience(restarts=2)))
    now: float = 100.0

    def __post_init__(self) -> None:
        self.council.open(self.now)

    def all_ready(self) -> list[Order]:
        return [order for rank in range(3) for order in self.council.ready(rank, 0, self.now)]

    def after(self, seconds: float, *alive: int) -> list[Order]:
        self.now += seconds
        heard = [order for rank in alive for order in self.council.alive(rank, self.now)]
        return [*heard, *self.council.tick(self.now)]

    def ended(self, rank: int, how: Ending) -> list[Order]:
        return self.council.ended(rank, how, self.now)


def begun() -> Meeting:
    meeting = Meeting()
    assert meeting.all_ready() == [Go(epoch=1)]
    return meeting


def test_nobody_starts_before_all_are_there() -> None:
    meeting = Meeting()
    assert meeting.council.ready(2, 0, meeting.now) == []
    assert meeting.council.ready(0, 0, meeting.now) == []
    assert meeting.after(REMIND_S) == [Tell(kind="waiting", values={"for": ["beta"], "seconds": 10})]
    assert meeting.after(1) == []
    assert meeting.council.ready(1, 0, meeting.now) == [Go(epoch=1)]


def test_who_never_comes_is_named_at_the_end() -> None:
    meeting = Meeting()
    meeting.council.ready(0, 0, meeting.now)
    meeting.council.ready(1, 0, meeting.now)
    (*_, over) = meeting.after(901)
    assert isinstance(over, Over)
    assert (over.ending.node, over.ending.kind) == ("gamma", "infrastructure")
    assert "901 s" in over.ending.reason
    assert meeting.after(1) == []


def test_all_done_is_over() -> None:
    meeting = begun()
    assert [meeting.ended(rank, DONE) for rank in (1, 0)] == [[], []]
    assert meeting.after(100, 1, 2) == []  # the last may take its time
    assert meeting.ended(2, DONE) == [Over(ending=DONE)]


def test_a_killed_rank_is_the_cause_whoever_speaks_first() -> None:
    meeting = begun()
    assert meeting.ended(0, LOST) == []
    assert meeting.after(SETTLE_S * 2) == []  # somebody else has more to say
    assert meeting.ended(2, KILLED) == [Again(epoch=2, cause=KILLED, restarts_left=1, pause_s=1.0)]
    assert meeting.all_ready() == []  # not before the pause is over
    assert meeting.after(1.0) == [Go(epoch=2)]


def test_where_all_only_lost_somebody_it_does_not_wait_for_ever() -> None:
    meeting = begun()
    meeting.ended(0, LOST)
    (again,) = meeting.after(PATIENT_SETTLE_S)
    assert isinstance(again, Again)
    assert again.cause == LOST


@pytest.mark.parametrize("kind", ["user", "configuration"])
def test_what_a_person_must_mend_is_not_tried_again(kind: Outcome) -> None:
    meeting = begun()
    meeting.ended(0, LOST)
    own = ending(kind, "beta", rank=1, reason="ValueError: no")
    assert [*meeting.ended(1, own), *meeting.after(SETTLE_S)] == [Over(ending=own)]


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
    """By what a script wrote: nothing of it is the user's error."""
    meeting = begun()
    broken = read_ending("beta", 1, [f"[rank1]: {line}"], first_rank=1)
    assert (broken.kind, broken.because_of_others) == ("infrastructure", False)
    meeting.ended(0, LOST)
    (again,) = [*meeting.ended(1, broken), *meeting.after(SETTLE_S)]
    assert isinstance(again, Again)
    assert again.cause == broken


MESH = "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] Connect timeout"


def test_closed_ports_end_the_run_unless_another_ranks_end_explains_them() -> None:
    mesh = read_ending("alpha", 1, [f"[rank0]: {MESH}"], first_rank=0)
    assert (mesh.kind, mesh.because_of_others) == ("configuration", True)
    meeting = begun()
    meeting.ended(0, mesh)
    assert meeting.after(PATIENT_SETTLE_S) == [Over(ending=mesh)]
    meeting = begun()
    meeting.ended(0, mesh)
    (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
    assert isinstance(again, Again)
    assert again.cause == KILLED
    assert meeting.ended(1, mesh) == []  # told too late: it follows from the end that was decided on


def test_a_users_error_told_too_late_is_told_all_the_same() -> None:
    """Its node was cut off when it failed, and the others are gathering for the next try."""
    meeting = begun()
    meeting.council.gone(1, meeting.now)
    meeting.after(SETTLE_S)
    own = ending("user", "beta", reason="ValueError: no")
    assert meeting.ended(1, own) == [Over(ending=own)]


def test_restarts_are_used_up_unless_there_is_progress() -> None:
    meeting = begun()
    for left in (1, 0):
        (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
        assert isinstance(again, Again)
        assert again.restarts_left == left
        meeting.all_ready()
        meeting.after(LONGEST_PAUSE_S)
    meeting.council.progressed()
    (again,) = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
    assert isinstance(again, Again)
    meeting.all_ready()
    meeting.after(LONGEST_PAUSE_S)
    for _ in range(2):
        orders = [*meeting.ended(2, KILLED), *meeting.after(SETTLE_S)]
        meeting.all_ready()
        meeting.after(LONGEST_PAUSE_S)
    assert orders == [Over(ending=KILLED)]


def test_a_node_that_goes_in_peace_is_waited_for_and_costs_no_restart() -> None:
    """Its machine shuts down: ranks have written their checkpoint, and the others' have ended well."""
    meeting = begun()
    stopped = ending("stopped", "gamma")
    meeting.ended(0, DONE)
    meeting.ended(1, DONE)
    (again,) = meeting.ended(2, stopped)
    assert again == Again(epoch=2, cause=stopped, restarts_left=2, pause_s=0.0) or again.cause.kind == "done"
    assert meeting.council.over is None


def test_a_short_silence_is_told_and_nothing_is_broken() -> None:
    meeting = begun()
    assert meeting.after(STALLED_S + 1, 1) == [Tell(kind="stalled", values={"nodes": ["gamma"], "seconds": 9})]
    assert meeting.after(1, 1) == []
    assert meeting.after(1, 1, 2) == [Tell(kind="heard", values={"nodes": ["gamma"]})]


def test_a_long_silence_is_a_loss_and_the_others_wait() -> None:
    meeting = begun()
    for _ in range(6):
        orders = meeting.after(10.0, 1)
    assert orders == []
    orders = [*meeting.after(1.0, 1), *meeting.after(SETTLE_S, 1)]
    (again,) = (order for order in orders if isinstance(order, Again))
    assert (again.cause.node, again.cause.reason) == ("gamma", "no word from it for 61 s")
    meeting.council.ready(0, 1, meeting.now)
    meeting.council.ready(1, 1, meeting.now)
    assert all(isinstance(order, Tell) for order in meeting.after(60, 1))
    assert meeting.council.ready(2, 1, meeting.now) == [Go(epoch=2)]


def test_a_container_that_is_back_before_its_loss_was_noticed() -> None:
    meeting = begun()
    assert meeting.council.ready(2, 0, meeting.now) == []
    (again,) = meeting.after(SETTLE_S)
    assert isinstance(again, Again)
    assert again.cause.node == "gamma"


def test_a_council_that_was_killed_learns_where_the_others_are() -> None:
    meeting = Meeting()
    meeting.council.ready(1, 7, meeting.now)
    meeting.council.ready(2, 7, meeting.now)
    assert meeting.council.ready(0, 0, meeting.now) == [Go(epoch=8)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "alive", "gone", "killed", "lost", "done", "user", "pause"]), st.integers(0, 2)
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_whatever_happens(steps: list[tuple[str, int]]) -> None:
    """No start while a rank runs, epochs only rise, nothing after the end, and it always comes to one."""
    meeting, council = Meeting(), Council(names=NAMES, patience=Patience(restarts=2))
    meeting.council = council
    council.open(meeting.now)
    running, epoch, over = set[int](), 0, 0
    ends = {"killed": KILLED, "lost": LOST, "done": DONE, "user": ending("user")}
    for word, rank in [*steps, ("pause", 0)]:
        if word == "pause":
            orders = meeting.after(20.0)
        elif word == "ready":
            running.discard(rank)
            orders = council.ready(rank, epoch, meeting.now)
        elif word == "alive":
            orders = council.alive(rank, meeting.now)
        elif word == "gone":
            running.discard(rank)
            orders = council.gone(rank, meeting.now)
        else:
            running.discard(rank)
            orders = council.ended(rank, ends[word], meeting.now)
        for order in orders:
            if isinstance(order, Go):
                assert order.epoch > epoch
                assert not running
                epoch, running = order.epoch, {0, 1, 2}
            elif isinstance(order, Again):
                assert order.restarts_left >= 0
                running = set()
            elif isinstance(order, Over):
                over += 1
    for _ in range(200):
        if council.over:
            break
        over += sum(isinstance(order, Over) for order in meeting.after(30.0))
    assert (over, council.over is not None) == (1, True)
