"""Lines of `orch launch`, `orch supervise` and `orch logs -f` about the conditions of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contract.events import Finished, GenerationStarted, NodesRecovered, Restarting, StepDone
from orchestrator.specs.run_events import Replanned, RunLine, Tick
from orchestrator.state.facts import ContainerSeen, LineRead, NodeAnswered, NodeUnanswered, RunSeen
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.watch.follow_lines import FollowLines
from orchestrator.watch.words import SHOWN_OTHERWISE
from tests import run_streams
from tests.each_case import failures_of
from tests.run_streams import CASES, RUN_ID, T0, Expected, Stream, container, iso, liveness
from tests.unit.test_one_verdict import state_of


def lines_of(make: Callable[[], Stream]) -> list[str]:
    """All lines, where the screen looks after each fact and again at the same time."""
    state, lines, shown = RunState(run_id=RUN_ID), FollowLines(), list[str]()
    for fact in make().facts:
        apply(state, fact)
        for _ in range(2):
            shown += lines.after(Tick(), state, fact.seen)
    return shown


def finished_after_a_restart() -> Stream:
    made = run_streams.resumed()
    made.agents(20, Finished(outcome="done", exit_code=0))
    made.answer(21)
    return made


def hang_that_restarts() -> Stream:
    made = run_streams.sigstop()
    made.event(100, "alpha", Restarting(outcome="infrastructure", node="gamma", reason="hung", restarts_left=2))
    made.agents(102, GenerationStarted(generation=2))
    made.event(110, "alpha", StepDone(step=120, loss=0.1), 0)
    return made


def hang_that_ends() -> Stream:
    made = run_streams.sigstop()
    made.agents(100, Finished(outcome="infrastructure", exit_code=1, node="gamma", reason="hung"))
    return made


def hang_of_another_rank() -> Stream:
    made = run_streams.sigstop()
    made.event(90, "alpha", liveness("idle", True, "rank 1 on beta is idle", (1,), 72))
    return made


def replanned(made: Stream) -> Stream:
    """The run continues without gamma, as its supervisor sees it: no node is asked for the run."""
    seen = [ContainerSeen(seen=T0, node=name, facts=container(name)) for name in made.names]
    made.facts = [*made.facts[:2], *seen, *(fact for fact in made.facts[2:] if not isinstance(fact, RunSeen))]
    made.names = made.names[:2]
    made.claim(170, 1, "replan")
    made.start(180, 1)
    for name in made.names:
        made.facts.append(ContainerSeen(seen=T0 + 181, node=name, facts=container(name, attempt=1)))
    made.answer(182, "alpha")
    return made


def replanned_without_a_silent_node() -> Stream:
    made = run_streams.trained()
    made.facts.append(NodeUnanswered(seen=T0 + 50, node="gamma", error="no answer in 5 s"))
    return replanned(made)


def peer_that_sends_again() -> Stream:
    made = run_streams.peer_silent()
    made.event(30, "alpha", NodesRecovered(nodes=("beta",)))
    return made


def test_each_stream_has_the_marks_of_its_verdict() -> None:
    def check(make: Callable[[], Stream], expected: Expected) -> None:
        state, now = state_of(make().facts), T0 + expected.at
        shown = [line for line in FollowLines().after(Tick(), state, now) if not line.startswith(" ")]
        wanted = [one for one in verdict(state, now).conditions if one.code not in SHOWN_OTHERWISE]
        marks = ["!" if one.severity in ("warning", "error") else "·" for one in wanted]
        assert [line[0] for line in shown] == marks, f"{make.__name__}: {shown}"

    assert failures_of(check, CASES) == []


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (run_streams.plain_script, []),
        (run_streams.sigstop, ["! rank 2 (gamma) is stopped (SIGSTOP)"]),
        (
            run_streams.progress_again,
            ["! rank 2 (gamma) is stopped (SIGSTOP)", "· the ranks make progress again"],
        ),
        (run_streams.resumed, ["· all ranks were restarted once; last cause: alpha: killed (restarts left: 2)"]),
        (finished_after_a_restart, ["· all ranks were restarted once; last cause: alpha: killed (restarts left: 2)"]),
        (
            hang_that_restarts,
            [
                "! rank 2 (gamma) is stopped (SIGSTOP)",
                "· all ranks were restarted once; last cause: gamma: hung (restarts left: 2)",
            ],
        ),
        (hang_that_ends, ["! rank 2 (gamma) is stopped (SIGSTOP)"]),
        (hang_of_another_rank, ["! rank 2 (gamma) is stopped (SIGSTOP)", "! rank 1 on beta is idle"]),
        (lambda: replanned(run_streams.sigstop()), ["! rank 2 (gamma) is stopped (SIGSTOP)"]),
        (lambda: replanned(run_streams.peer_silent()), ["! beta sends nothing to the coordinator"]),
        (replanned_without_a_silent_node, ["! gamma does not answer this computer: no answer in 5 s"]),
        (peer_that_sends_again, ["! beta sends nothing to the coordinator", "· beta sends again"]),
        (run_streams.good_end, []),
        (run_streams.failed_rank, []),
    ],
)
def test_a_condition_is_shown_once_and_so_is_its_end(make: Callable[[], Stream], wanted: list[str]) -> None:
    assert [line for line in lines_of(make) if not line.startswith("  →")] == wanted


def test_a_node_that_answers_again() -> None:
    def stream() -> Stream:
        made = run_streams.one_node_silent()
        made.facts.append(NodeAnswered(seen=T0 + 30, node="beta"))
        return made

    assert lines_of(stream) == [
        "! beta does not answer this computer: no answer in 5 s", "  → orch doctor --nodes beta",
        "· beta answers again",
    ]  # fmt: skip


def test_nothing_of_the_attempt_before_is_shown_with_the_next_plan() -> None:
    stream = run_streams.one_node_silent()
    assert FollowLines().after(Replanned(plan=stream.plan), state_of(stream.facts), T0 + 21) == []


def test_a_condition_that_becomes_more_severe_is_shown_again() -> None:
    state, lines = state_of(run_streams.node_absent().facts), FollowLines()
    marks = [next(iter(lines.after(Tick(), state, T0 + at)), "-")[0] for at in (2, 3, 40, 41)]
    assert marks == ["·", "-", "!", "-"]


def test_that_a_node_is_slow_is_shown_once_in_a_run_whichever_it_is() -> None:
    stream, lines = run_streams.slow_node(), FollowLines()
    state = state_of(stream.facts)
    assert lines.after(Tick(), state, T0 + 14)
    for step, beta_s, gamma_s in ((120, 0.1, 0.1), (130, 0.4, 0.1), (140, 0.1, 0.4)):
        times = {"alpha": 0.1, "beta": beta_s, "gamma": gamma_s}
        stream.event(step / 10, "alpha", StepDone(step=step, compute_s=times), 0)
        apply(state, stream.facts[-1])
        assert lines.after(Tick(), state, T0 + step / 10) == []


def test_lines_of_ranks_cost_no_verdict() -> None:
    state, lines = state_of(run_streams.one_node_silent().facts), FollowLines()
    text = RunLine(time=iso(T0), node="alpha", node_rank=0, rank=0, text="epoch 1")
    assert lines.after(text, state, T0 + 21) == []
    event = next(
        fact.line for fact in run_streams.trained().facts if isinstance(fact, LineRead) and fact.line.rank == 0
    )
    assert len(lines.after(event, state, T0 + 21)) == 2
