"""Decisions for a run after a fault: a table of events and clock in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.program import Program
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.run_events import ContainerExited, ContainerRemoved, NodeBack, NodeLost, RunEvent, RunLine, Tick
from orchestrator.state.facts import ContainerSeen, JournalRead, fact_of
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import ClaimEntry, JournalEntry, StartedEntry, StopEntry
from orchestrator.state.limits import LEAVE_S
from orchestrator.state.recovery import (
    KILLED_S,
    LAST,
    SETTLE_S,
    AddNodes,
    Decision,
    DisableRestart,
    End,
    GiveUp,
    NoNodeAnswers,
    Policy,
    Replan,
    StartContainer,
    StopOthers,
    Supervising,
    decide,
)
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from tests import lan

NAMES = ("alpha", "beta", "gamma")
POLICY = Policy(max_restarts=2, node_timeout_s=120.0, min_nodes=0, no_answer_s=300.0)
MAY_SHRINK = replace(POLICY, min_nodes=2)


def event(by: str, kind: str, /, **values: object) -> RunLine:
    """A supervisor's line."""
    text = lan.event(kind, **values).partition(": ")[2]
    return RunLine(time="", node=by, node_rank=NAMES.index(by), rank=None, text=text)


def rank(node: str, text: str = "step 3") -> RunLine:
    number = NAMES.index(node)
    return RunLine(time="", node=node, node_rank=number, rank=number, text=text)


def ended(node: str, code: int, *, oom: bool = False) -> ContainerExited:
    facts = ContainerFacts(
        id=node, name="orch-run", image="", labels={}, status="exited", exit_code=code, oom_killed=oom
    )
    return ContainerExited(node=node, node_rank=NAMES.index(node), container=facts)


def lost(node: str) -> NodeLost:
    error = NodeUnreachableError("no answer in 5 s", node=node)
    return NodeLost(node=node, node_rank=NAMES.index(node), error=error)


def back(node: str) -> NodeBack:
    return NodeBack(node=node, node_rank=NAMES.index(node) if node in NAMES else None)


CHECKPOINT = RunLine(
    time="", node="alpha", node_rank=0, rank=0, text=lan.event("checkpoint", step=40, verified=True).partition(": ")[2]
)
Story = Sequence[tuple[float, RunEvent]]


class Watched:
    """A run of which a supervisor reads events."""

    def __init__(self, policy: Policy = POLICY, nodes: tuple[str, ...] = NAMES) -> None:
        self.state, self.done, self.policy = RunState(run_id="r1"), Supervising(), policy
        claim, started = ClaimEntry(attempt=0, id="c0", nodes=nodes), StartedEntry(attempt=0)
        self.entries: list[JournalEntry] = [claim, started]
        self._record(0.0)
        for name in nodes:
            self._runs(name, 0.0)

    def _record(self, now: float, *entries: JournalEntry) -> None:
        self.entries += entries
        apply(self.state, JournalRead(seen=now, journal=fold(self.entries)))

    def _runs(self, name: str, now: float) -> None:
        facts = ContainerFacts(id=name, name="orch-run", image="", labels={}, status="running")
        apply(self.state, ContainerSeen(seen=now, node=name, facts=facts))

    def request_stop(self) -> None:
        self._record(0.0, StopEntry())

    def step(self, happening: RunEvent, now: float) -> tuple[Decision, ...]:
        if isinstance(happening, RunLine):
            happening = replace(happening, time=datetime.fromtimestamp(AT + now, UTC).isoformat())
        if fact := fact_of(happening, now):
            apply(self.state, fact)
        self.done, decisions = decide(self.state, self.done, self.policy, happening, now)
        for decision in decisions:
            if isinstance(decision, StartContainer):
                self._runs(decision.node, now)
        return decisions


AT = 1.7e9


def decided(
    story: Story, policy: Policy = POLICY, nodes: tuple[str, ...] = NAMES
) -> tuple[Watched, list[tuple[float, Decision]]]:
    """All decisions of a story, each with its time; the last ends it."""
    situation, decisions = Watched(policy, nodes), list[tuple[float, Decision]]()
    for now, happening in story:
        new = situation.step(happening, now)
        decisions += [(now, decision) for decision in new]
        if any(isinstance(decision, LAST) for decision in new):
            break
    return situation, decisions


def outcome(story: Story, policy: Policy = POLICY, nodes: tuple[str, ...] = NAMES) -> list[tuple[float, Decision]]:
    return decided(story, policy, nodes)[1]


def all_end(code: int, at: float = 1.0) -> list[tuple[float, RunEvent]]:
    return [(at, ended(name, code)) for name in NAMES]


def test_all_done() -> None:
    assert outcome(all_end(0)) == [(1.0, End())]


def test_nothing_is_done_while_all_is_well() -> None:
    assert outcome([(0, rank("alpha")), (500, Tick()), (900, CHECKPOINT), (901, Tick())]) == []


def test_a_failure_for_good_stops_the_rest_after_a_moment() -> None:
    story = [(10.0, ended("beta", 1)), (10.0 + SETTLE_S / 2, Tick()), (10.0 + SETTLE_S, Tick()), (99, Tick())]
    assert outcome(story) == [(10.0 + SETTLE_S, StopOthers(nodes=("alpha", "gamma")))]


def test_the_supervisors_word_that_all_is_over_lets_each_end_by_itself() -> None:
    over = {"outcome": "user", "node": "gamma"}
    story: Story = [(0, event("gamma", "finished", **over)), (1, event("alpha", "finished", **over)), *all_end(1, 2.0)]
    assert outcome(story) == [(1, DisableRestart(nodes=NAMES)), (2.0, End())]
    frozen: Story = [(0, event("gamma", "finished", **over)), (1, ended("gamma", 1)), (LEAVE_S, Tick())]
    assert outcome(frozen) == [(LEAVE_S, StopOthers(nodes=("alpha", "beta")))]


def test_engines_are_asked_once_not_to_start_again_what_has_failed() -> None:
    failed = event("alpha", "finished", outcome="user", node="gamma")
    story: Story = [(0, failed), (1, event("alpha", "finished", outcome="user")), (2, ended("beta", 1)), (3, Tick())]
    assert outcome(story) == [(0, DisableRestart(nodes=NAMES))]
    assert outcome([(0, event("alpha", "finished", outcome="done")), (1, Tick())]) == []
    assert outcome([(0, event("beta", "finished", outcome="user")), (1, Tick())]) == []


def test_who_is_lost_is_not_waited_for_once_all_is_over() -> None:
    story: Story = [
        (0, lost("gamma")),
        (1, event("alpha", "finished", outcome="done")),
        (2, ended("alpha", 0)),
        (3, ended("beta", 0)),
    ]
    assert outcome(story) == [(3, End())]


def test_a_node_that_could_not_be_stopped_is_not_waited_for_though_it_writes_again() -> None:
    used = event("alpha", "resources", resources={"cpu_percent": 1, "cpus": 1, "ram_used_mib": 1, "ram_limit_mib": 2})
    story: Story = [(10, ended("beta", 1)), (11.5, Tick()), (12, lost("alpha")), (13, used), (14, ended("gamma", 143))]
    assert outcome(story) == [(11.5, StopOthers(nodes=("alpha", "gamma"))), (14, End())]


@pytest.mark.parametrize("later", [event("alpha", "stopped", step=41), ContainerRemoved(node="beta", node_rank=1)])
def test_a_run_that_has_failed_is_not_started_again(later: RunEvent) -> None:
    """Reports of its ranks and nodes after the others were stopped do not undo the failure."""
    story: Story = [(10, ended("beta", 1)), (11.5, Tick()), (12, later), (13, ended("alpha", 143))]
    killed: Story = [(16, ended("gamma", 137)), (16 + KILLED_S, Tick())]
    assert outcome([*story, *killed]) == [(11.5, StopOthers(nodes=("alpha", "gamma"))), (16, End())]


def test_a_restart_by_the_supervisors_is_not_the_end() -> None:
    again = event("alpha", "restarting", outcome="infrastructure", node="beta", generation=2)
    assert (
        outcome([(0, again), (1, event("alpha", "generation", generation=2)), (50, rank("beta")), (900, Tick())]) == []
    )


# ── A container that was killed by hand ──────────────────────────────────────────────────────────────────────────────


def test_a_container_that_was_killed_is_started_again() -> None:
    story: Story = [(10, ended("gamma", 137)), (10 + KILLED_S - 1, Tick()), (10 + KILLED_S, Tick()), (90, Tick())]
    assert outcome(story) == [(10 + KILLED_S, StartContainer(node="gamma"))]


def test_at_most_so_often() -> None:
    story = [(100.0 * n + more, what) for n in range(3) for more, what in ((0, ended("gamma", 137)), (50, Tick()))]
    assert [decision for _, decision in outcome(story)] == [
        StartContainer(node="gamma"), StartContainer(node="gamma"), StopOthers(nodes=("alpha", "beta")),
    ]  # fmt: skip


def test_a_run_of_one_node_too() -> None:
    story: Story = [(0, ended("alpha", 137)), (KILLED_S, Tick())]
    assert outcome(story, nodes=("alpha",)) == [(KILLED_S, StartContainer(node="alpha"))]


def test_one_whose_memory_ran_out_is_not() -> None:
    """Docker itself starts it again, as often as its policy says; what is seen here is its last end."""
    story: Story = [(0, ended("gamma", 137, oom=True)), (SETTLE_S, Tick())]
    assert outcome(story) == [(SETTLE_S, StopOthers(nodes=("alpha", "beta")))]


def test_one_that_had_reported_its_end_is_not() -> None:
    story: Story = [(0, event("gamma", "finished", outcome="stopped")), (1, ended("gamma", 143)), (2, Tick())]
    assert outcome(story) == []


def test_a_run_that_is_stopped_stays_stopped() -> None:
    """`orch stop` on this controller leaves a mark; frozen containers are killed by it."""
    situation = Watched()
    situation.request_stop()
    for name in NAMES[:2]:
        assert situation.step(ended(name, 137), 1.0) == ()
    assert situation.step(Tick(), 100.0) == ()
    assert situation.step(ended("gamma", 137), 101.0) == (End(),)


def test_a_stop_from_another_controller() -> None:
    """All end alike at once after SIGTERM; or containers are gone before they would be started again."""
    assert outcome(all_end(143)) == [(1.0, End())]
    hard: Story = [*all_end(137), *((2.0, ContainerRemoved(node=name, node_rank=0)) for name in NAMES), (60, Tick())]
    assert outcome(hard) == [(2.0, End())]


def test_one_node_that_was_asked_to_stop_is_started_again() -> None:
    story: Story = [(0, ended("gamma", 143)), (KILLED_S, Tick())]
    assert outcome(story) == [(KILLED_S, StartContainer(node="gamma"))]


# ── A node that is gone ──────────────────────────────────────────────────────────────────────────────────────────────


def waiting(now: float, *names: str, seconds: float = 10) -> tuple[float, RunEvent]:
    return now, event("alpha", "waiting", nodes=list(names), seconds=seconds)


def test_a_node_that_is_gone_too_long_ends_the_run() -> None:
    story: Story = [(100, lost("gamma")), (219, Tick()), (220, Tick())]
    assert outcome(story) == [(220, GiveUp(nodes=("gamma",), seconds=120))]


def test_or_it_continues_without() -> None:
    story: Story = [(100, lost("gamma")), (220, Tick())]
    assert outcome(story, MAY_SHRINK) == [(220, Replan(without=("gamma",), left=("alpha", "beta")))]


def test_not_with_too_few() -> None:
    story: Story = [(100, lost("beta")), (100, lost("gamma")), (220, Tick())]
    assert outcome(story, MAY_SHRINK) == [(220, GiveUp(nodes=("beta", "gamma"), seconds=120))]


def test_the_master_may_be_the_one() -> None:
    story: Story = [(100, lost("alpha")), (220, Tick())]
    assert outcome(story, MAY_SHRINK) == [(220, Replan(without=("alpha",), left=("beta", "gamma")))]


def test_who_comes_back_in_time_is_not_given_up() -> None:
    assert outcome([(100, lost("gamma")), (200, back("gamma")), (400, Tick())]) == []


def test_ranks_that_continue_speak_for_a_node_that_only_the_supervisor_lost() -> None:
    story = [(100.0, lost("gamma")), *((110.0 + n, rank("alpha")) for n in range(0, 600, 10)), (760.0, Tick())]
    assert outcome(story) == []
    assert outcome([*story, (820.0, Tick())]) == [(820.0, GiveUp(nodes=("gamma",), seconds=120))]


def test_who_is_waited_for_by_the_others_is_gone_though_the_supervisor_reaches_it() -> None:
    """Frozen, or its cable to the others is cut. It counts from when they began to wait."""
    story = [waiting(100.0 + n, "gamma", seconds=10 + n) for n in range(0, 120, 10)]
    assert outcome(story, MAY_SHRINK) == [(210, Replan(without=("gamma",), left=("alpha", "beta")))]


def test_a_stall_counts_until_its_next_sign() -> None:
    stalled = event("alpha", "stalled", nodes=["gamma"], seconds=8)
    received = event("alpha", "recovered", nodes=["gamma"])
    assert outcome([(100, stalled), (150, received), (400, Tick())]) == []
    assert outcome([(100, stalled), waiting(200, "gamma"), (212, Tick())]) == [
        (212, GiveUp(nodes=("gamma",), seconds=120))
    ]


def test_a_new_epoch_ends_all_waiting() -> None:
    assert outcome([waiting(100, "gamma"), (150, event("alpha", "generation", generation=2)), (400, Tick())]) == []


def test_of_the_supervisors_only_rank_0s_knows_who_is_missing() -> None:
    words = event("beta", "waiting", nodes=["alpha", "gamma"], seconds=500)
    assert outcome([(600, words), (900, Tick())]) == []


def test_who_waits_for_everybody_is_the_one_that_is_cut_off() -> None:
    story: Story = [waiting(100, "beta", "gamma"), (215, Tick())]
    assert outcome(story, MAY_SHRINK) == [(215, Replan(without=("alpha",), left=("beta", "gamma")))]
    gone: Story = [waiting(100, "beta", "gamma"), (100, lost("beta")), (100, lost("gamma")), (220, Tick())]
    assert outcome(gone, replace(MAY_SHRINK, min_nodes=1)) == [
        (220, Replan(without=("beta", "gamma"), left=("alpha",)))
    ]


@pytest.mark.parametrize("names", [None, "gamma", [7], ["delta"], {}])
def test_words_that_make_no_sense_are_not_acted_on(names: object) -> None:
    story: Story = [(0, event("alpha", "waiting", nodes=names, seconds="long")), (900, Tick())]
    assert outcome(story) == []


def test_where_no_node_answers_it_is_the_controller_that_is_cut_off() -> None:
    story: Story = [(100.0, lost(name)) for name in NAMES]
    assert outcome([*story, (350, Tick())]) == []
    assert outcome([*story, (400, Tick())]) == [(400, NoNodeAnswers(seconds=300))]
    assert outcome([*story, (350, back("alpha")), (351, Tick())])[0][1] == GiveUp(nodes=("beta", "gamma"), seconds=250)


@pytest.mark.parametrize("end", [ended("alpha", 0), ContainerRemoved(node="alpha", node_rank=0)])
def test_a_silent_node_is_not_waited_for_once_another_has_ended(end: RunEvent) -> None:
    story: Story = [(100, lost("gamma")), (101, end), (102, ContainerRemoved(node="beta", node_rank=1)), (219, Tick())]
    assert outcome(story) == []
    assert outcome([*story, (220, Tick())]) == [(220, NoNodeAnswers(seconds=120))]
    assert outcome([*story, (219, back("gamma")), (220, ended("gamma", 0))]) == [(220, End())]


def test_a_stop_from_elsewhere_is_not_undone_where_a_node_is_silent() -> None:
    stops: Story = [(100, lost("gamma")), (101, event("alpha", "stopped"))]
    both: Story = [(102, ended("alpha", 143)), (103, ended("beta", 143)), (200, Tick())]
    assert outcome([*stops, *both]) == [(103, End())]
    shut_down = outcome([stops[0], *both])  # such as two machines that restart: the ranks were not asked
    assert shut_down == [(200, StartContainer(node="alpha")), (200, StartContainer(node="beta"))]


def test_without_patience_the_first_loss_is_the_end() -> None:
    assert outcome([(5, lost("beta"))], Policy()) == [(5, GiveUp(nodes=("beta",), seconds=0))]


# ── A node that comes back ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_was_given_up_is_added_at_the_next_checkpoint() -> None:
    story: Story = [(0, CHECKPOINT), (10, back("delta")), (11, rank("alpha")), (20, CHECKPOINT)]
    assert outcome(story, MAY_SHRINK) == [(20, AddNodes(nodes=("delta",)))]


def test_not_at_one_that_was_not_verified_nor_while_all_ends() -> None:
    bad = replace(CHECKPOINT, text=CHECKPOINT.text.replace("true", "false"))
    assert outcome([(10, back("delta")), (20, bad)], MAY_SHRINK) == []
    ending: Story = [(10, back("delta")), (19, event("alpha", "finished", outcome="done")), (20, CHECKPOINT)]
    assert outcome(ending, MAY_SHRINK) == []


# ── Whatever happens ─────────────────────────────────────────────────────────────────────────────────────────────────

_KINDS = ("waiting", "stalled", "recovered", "generation", "restarting", "finished", "stopped")
_NODE = st.sampled_from(NAMES)
_SOME = st.lists(st.sampled_from((*NAMES, "delta")), max_size=3)
HAPPENINGS = st.one_of(
    st.just(Tick()),
    st.just(CHECKPOINT),
    st.builds(rank, _NODE),
    st.builds(lost, _NODE),
    st.builds(back, st.sampled_from((*NAMES, "delta"))),
    st.builds(lambda name: ContainerRemoved(node=name, node_rank=NAMES.index(name)), _NODE),
    st.builds(ended, _NODE, st.sampled_from((0, 1, 3, 137, 143, 255)), oom=st.booleans()),
    st.builds(
        lambda node, kind, names, seconds: event(node, kind, nodes=names, seconds=seconds),
        _NODE, st.sampled_from(_KINDS), _SOME, st.integers(0, 200),
    ),
)  # fmt: skip
STORIES = st.lists(st.tuples(st.floats(0, 50), HAPPENINGS), max_size=60)


@given(STORIES, st.sampled_from((POLICY, MAY_SHRINK, Policy())))
def test_whatever_happens_decisions_make_sense(story: list[tuple[float, RunEvent]], policy: Policy) -> None:
    now, timed = 0.0, []
    for seconds, happening in story:
        now += seconds
        timed.append((now, happening))
    situation, decisions = decided(timed, policy)
    kinds = [type(decision) for _, decision in decisions]
    silent = {one.name for one in situation.state.members if one.silent_since is not None}
    assert kinds.count(StopOthers) <= 1
    for name in NAMES:
        starts = [one for _, one in decisions if isinstance(one, StartContainer) and one.node == name]
        assert len(starts) <= policy.max_restarts
    assert not any(issubclass(kind, LAST) for kind in kinds[:-1])
    for _, decision in decisions:
        if isinstance(decision, Replan):
            assert len(decision.left) >= policy.min_nodes > 0
            assert not set(decision.left) & {*decision.without, *silent}
        if isinstance(decision, GiveUp):
            assert decision.nodes
            assert decision.seconds >= policy.node_timeout_s


@given(STORIES)
def test_a_run_whose_containers_have_all_ended_ends(story: list[tuple[float, RunEvent]]) -> None:
    """Nothing hangs: once every container has ended for good, one decision ends the following."""
    timed = [(float(number), happening) for number, (_, happening) in enumerate(story)]
    situation, decisions = decided(timed)
    if decisions and isinstance(decisions[-1][1], LAST):
        return
    now, final = 1e6, list[Decision]()
    for name in NAMES:
        new = situation.step(ContainerRemoved(node=name, node_rank=NAMES.index(name)), now)
        final += new
        if any(isinstance(decision, LAST) for decision in new):
            break
    assert any(isinstance(decision, LAST) for decision in final)


# ── The step of a training that continues with other nodes ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "samples", "after"),
    [
        (("gpt2", "--batch-size", "2"), 6, ("gpt2", "--batch-size", "2", "--global-batch-size", "6")),
        (("gpt2", "--grad-accum", "4", "--lr", "1"), 24, ("gpt2", "--lr", "1", "--global-batch-size", "24")),
        (("gpt2", "--gradient-accumulation-steps=4"), 24, ("gpt2", "--global-batch-size", "24")),
        (("gpt2", "--global-batch-size=60"), 60, ("gpt2", "--global-batch-size=60")),
        (("python", "train.py"), None, ("python", "train.py")),
        (("python", "train.py"), 6, ("python", "train.py")),
        (("gpt2",), None, ("gpt2",)),
    ],
)
def test_a_step_keeps_its_samples(command: tuple[str, ...], samples: int | None, after: tuple[str, ...]) -> None:
    assert Program.of(command).with_step(samples) == after
