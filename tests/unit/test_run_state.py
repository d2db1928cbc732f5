"""The state of a run: the order of reading does not matter, nothing breaks it, and it has bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from contract.event_lines import encode_event
from contract.event_values import RankPosition
from contract.events import (
    CheckpointWritten,
    Evaluated,
    Event,
    GenerationStarted,
    LivenessReported,
    NodesStalled,
    OutputProgress,
    RankStarted,
    ResourcesSampled,
    StepDone,
    WaitingForNodes,
)
from orchestrator.render.runs import run_table
from orchestrator.specs.run_events import RunLine
from orchestrator.state import limits
from orchestrator.state.facts import Fact, JournalRead, LineRead, NodeAnswered, RunSeen
from orchestrator.state.phase import Phase, phase_of
from orchestrator.state.progress import progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.watch.timeline import timeline_of
from tests.run_streams import (
    CASES,
    NAMES,
    RUN_ID,
    T0,
    USAGE,
    Expected,
    Stream,
    begun,
    iso,
    plain_script,
    progress_bar,
    trained,
)
from tests.unit.test_one_verdict import state_of

Make = Callable[[], Stream]
ORDERED = (JournalRead, RunSeen)
"""Facts about all nodes: what they change is written before the lines that follow from it."""


def node_of(fact: Fact) -> str:
    return fact.line.node if isinstance(fact, LineRead) else getattr(fact, "node", "")


def interleaved(facts: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Another order that keeps the order of each node."""
    result: list[Fact] = []
    waiting: dict[str, list[Fact]] = {}

    def flush() -> None:
        while streams := [one for one in waiting.values() if one]:
            result.append(rng.choice(streams).pop(0))

    for fact in facts:
        if isinstance(fact, ORDERED):
            flush()
            result.append(fact)
        else:
            waiting.setdefault(node_of(fact), []).append(fact)
    flush()
    return result


def repeated(facts: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Some lines are read again: at once, or a little later, over another connection."""
    result: list[Fact] = []
    for fact in facts:
        result.append(fact)
        again = [one for one in result[-20:] if isinstance(one, LineRead)]
        if again and not isinstance(fact, ORDERED) and rng.random() < 0.3:
            attempt = fact.line.attempt if isinstance(fact, LineRead) else None
            result += [one for one in again if one.line.attempt == attempt][-rng.randint(1, 5) :]
    return result


@pytest.mark.parametrize(("make", "expected"), CASES, ids=[f"{make.__name__}-{row.at}" for make, row in CASES])
def test_any_order_that_keeps_that_of_each_node_ends_in_an_equal_state(make: Make, expected: Expected) -> None:
    facts, rng = make().facts, random.Random(7)  # noqa: S311  # the same in each run
    wanted = state_of(facts)
    for _ in range(20):
        assert state_of(interleaved(facts, rng)) == wanted
        assert state_of(repeated(facts, rng)) == wanted
    assert verdict(state_of(interleaved(facts, rng)), T0 + expected.at) == verdict(wanted, T0 + expected.at)


def noise(rng: random.Random, number: int) -> Fact:
    """A line that is no part of the run, or that no version of orch writes."""
    node = rng.choice((*NAMES, "mallory"))
    kinds = sorted(Event.kinds)
    texts = (
        '@orch {"event": "gpu_hot", "step": 7}',
        f'@orch {{"event": "{rng.choice(kinds)}"}}',
        f'@orch {{"event": "{rng.choice(kinds)}", "step": 12, "generation": 3, "nodes": ["x"], "rank": 999999}}',
        "@orch {",
        "",
        "\x1b[2J" * 50,
    )
    line = RunLine(
        time=rng.choice((iso(T0 + 5), iso(T0 - 86400), iso(T0 + 1e7), "yesterday", "")),
        node=node, node_rank=rng.randint(-1, 5), rank=rng.choice((None, 0, 1, 999999)), text=rng.choice(texts),
        container=rng.choice(("", "alpha-0", f"x{number}")), attempt=rng.choice((None, 0, 1, 7)),
    )  # fmt: skip
    return LineRead(seen=T0 + 5, line=line)


def test_nothing_that_is_read_raises_an_error_and_every_cut_has_a_verdict() -> None:
    for number, (make, expected) in enumerate(CASES):
        rng, state = random.Random(number), RunState(run_id=RUN_ID)  # noqa: S311  # the same in each run
        for position, fact in enumerate(make().facts):
            for one in (noise(rng, position), fact):
                apply(state, one)
            assert verdict(state, T0 + expected.at).phase
            progress_of(state, phase_of(state), T0 + expected.at)


def test_other_attempts_and_containers_change_neither_progress_nor_phase() -> None:
    for make, expected in CASES:
        facts = make().facts
        wanted, state = state_of(facts), RunState(run_id=RUN_ID)
        for fact in facts:
            apply(state, fact)
            if isinstance(fact, LineRead) and wanted.has_record:
                apply(state, replace(fact, line=replace(fact.line, attempt=77, container="of another attempt")))
        now = T0 + expected.at
        assert phase_of(state) is phase_of(wanted)
        assert progress_of(state, phase_of(state), now) == progress_of(wanted, phase_of(wanted), now)
        assert [one.part for one in state.members] == [one.part for one in wanted.members]


def test_a_clock_that_is_set_back_leaves_ages_as_they_are() -> None:
    s = begun()
    for second in range(2, 30):
        s.event(second, "alpha", StepDone(step=second, final_step=100, remaining_s=60.0), 0)
    ahead = [replace(one, line=replace(one.line, time=iso(one.seen + 3600))) if isinstance(one, LineRead) else one
             for one in s.facts]  # fmt: skip
    back = [replace(one, line=replace(one.line, time=iso(one.seen - 3600)))
            if isinstance(one, LineRead) and one.seen > T0 + 15 else one for one in s.facts]  # fmt: skip
    for facts in (s.facts, ahead, back):
        state = state_of(facts)
        shown = progress_of(state, phase_of(state), T0 + 29.5)
        assert shown.age_s == pytest.approx(0.5, abs=1.1)
        assert shown.step == 29


def test_a_clock_that_is_behind_leaves_ages_as_they_are() -> None:
    """The coordinator's clock is behind by 10 minutes: nothing has lasted longer for that."""

    def behind(stream: Stream) -> list[Fact]:
        return [
            replace(one, line=replace(one.line, time=iso(one.seen - 600))) if isinstance(one, LineRead) else one
            for one in stream.facts
        ]

    s = trained(200)
    s.event(80, "alpha", LivenessReported(rule="computing", text="rank 1 computes", seconds=60.0))
    s.event(80, "alpha", WaitingForNodes(nodes=("beta",), seconds=5.0))
    s.event(80, "alpha", NodesStalled(nodes=("gamma",), seconds=8.0))
    s.event(80, "alpha", StepDone(step=210, remaining_s=90.0), 0)
    right, late, now = state_of(s.facts), state_of(behind(s)), T0 + 85
    assert verdict(late, now).conditions == verdict(right, now).conditions
    assert progress_of(late, Phase.RUNNING, now) == progress_of(right, Phase.RUNNING, now)

    hanging = [one for one in behind(s) if one.seen < T0 + 5]  # all is read at once, and then nothing comes
    hanging = [replace(one, seen=T0 + 600) if isinstance(one, LineRead) else one for one in hanging]
    assert progress_of(state_of(hanging), Phase.RUNNING, T0 + 700).age_s == pytest.approx(1296)


def test_a_script_that_reports_no_steps_has_optimizer_steps() -> None:
    """Those of the lowest rank; of one whose steps are counted."""
    s = plain_script()
    for node, rank, step in (("beta", 1, 1204), ("gamma", 2, 1200)):
        position = RankPosition(rank=rank, step=step, steps_per_s=3.1, collectives_per_step=1.0)
        s.event(30, node, ResourcesSampled(usage=USAGE, positions=(position,)))
    s.event(30, "alpha", ResourcesSampled(usage=USAGE, positions=(RankPosition(rank=0),)))
    state = state_of(s.facts)
    shown = progress_of(state, Phase.RUNNING, T0 + 31)
    assert (shown.step, shown.optimizer_steps, shown.steps_per_s) == (None, 1204, 3.1)
    assert progress_of(state, Phase.STOPPED, T0 + 31).steps_per_s is None
    assert progress_of(state_of(trained().facts), Phase.RUNNING, T0 + 31).optimizer_steps is None


def test_status_shows_the_newest_line_only_where_nothing_newer_is_read_from_the_output() -> None:
    """A report is up to some seconds older than the newest line: the two would contradict each other."""
    s = plain_script()
    s.event(30, "alpha", OutputProgress(rank=0, epoch=1.0, epochs=9), 0)
    s.write(33, "alpha", "epoch 2/9", 0)
    state = state_of(s.facts)
    fresh, old = (run_table(state, verdict(state, now), now).title for now in (T0 + 34, T0 + 95))
    assert str(fresh) == f"run {state.run_id}  running  epoch 1/9   (read from its output)"
    assert str(old).splitlines()[1] == "rank 0: epoch 2/9"


def test_the_newest_state_of_a_progress_bar_is_the_last_line() -> None:
    state = state_of(progress_bar().facts)
    assert progress_of(state, phase_of(state), T0 + 61).last_line == "rank 0: epoch 1: 59%|###"


def test_a_container_that_was_started_again_counts_generations_from_one() -> None:
    s = trained()
    for at in (20, 30):
        s.agents(at, GenerationStarted(generation=1))
    assert state_of(s.facts).restarts == 2


def test_lines_of_the_end_alone_name_the_generation() -> None:
    """The newest lines of a container, without a record: the starts before them are not read."""
    s = begun()
    s.facts = []
    s.run(0)
    s.agents(20, GenerationStarted(generation=4))
    state = state_of(s.facts)
    assert (state.restarts, phase_of(state).value) == (3, "running")


def test_collections_are_bounded() -> None:
    state = state_of(begun().facts)
    for number in range(6000):
        at = 10 + number * 0.01
        facts = Stream()
        facts.event(at, "alpha", StepDone(step=number, loss=1.0), 0)
        facts.event(at, "beta", GenerationStarted(generation=number))
        facts.event(at, "beta", RankStarted(device="cpu"), number)
        facts.write(at, "gamma", "x" * 5000, number)
        line = RunLine(time=iso(T0 + at), node=f"node-{number}", node_rank=0, rank=0, text="y")
        facts.facts.append(LineRead(seen=T0 + at, line=replace(line, container=f"c{number}", attempt=9)))
        facts.facts.append(NodeAnswered(seen=T0 + at, node=f"other-{number}"))
        names = [f"n{one}" for one in range(400 if number % 100 == 0 else 4)]
        facts.write(at, "alpha", f'@orch {{"event": "waiting", "nodes": {names}}}'.replace("'", '"'))
        for fact in facts.facts:
            apply(state, fact)
    most = {"nodes": limits.NODES, "ranks": limits.RANKS, "starts": limits.STARTS}
    for name, size in sizes(state):
        assert size <= most.get(name, 600), f"{name}: {size}"
    assert len(state.nodes["gamma"].part.tail[-1].text) == limits.LINE_CHARS


def sizes(value: Any, name: str = "") -> list[tuple[str, int]]:
    """Every collection in a state, with its number of items."""
    if is_dataclass(value) and not isinstance(value, type):
        return [found for one in fields(value) for found in sizes(getattr(value, one.name), one.name)]
    if isinstance(value, dict):
        return [(name, len(value)), *(found for one in value.values() for found in sizes(one, name))]
    if hasattr(value, "__len__") and not isinstance(value, str):
        return [(name, len(value))]
    return []


def test_faults_of_a_long_run_are_counted_and_shown() -> None:
    s = begun()
    s.event(10, "alpha", LivenessReported(rule="idle", text="rank 1 is idle", fault=True, seconds=60.0))
    s.event(11, "alpha", LivenessReported(rule=""))
    s.event(12, "alpha", NodesStalled(nodes=("beta",), seconds=8.0))
    for number in range(limits.MOMENTS + 1):
        s.event(20 + number, "alpha", CheckpointWritten(step=number, verified=True), 0)
        s.event(20 + number, "alpha", Evaluated(step=number), 0)
    assert [one.text for one in timeline_of(state_of(s.facts))][:1] == ["rank 1 is idle"]
    for number in range(limits.MOMENTS + 1):
        s.event(200 + number, "alpha", WaitingForNodes(nodes=("gamma",), seconds=float(number)))
    assert state_of(s.facts).faults == {"warnings about stuck ranks": 1, "silences of beta": 1}


def test_events_that_are_long_are_cut() -> None:
    state = state_of(begun().facts)
    text = encode_event(StepDone(step=5, loss=1.0, unit="u" * 100_000, others={"x": "y" * 100_000}))
    line = RunLine(time=iso(T0 + 3), node="alpha", node_rank=0, rank=0, text=text)
    apply(state, LineRead(seen=T0 + 3, line=line))
    progress = state.nodes["alpha"].part.progress
    assert progress is not None
    assert (progress.step, len(progress.unit or ""), progress.others) == (5, limits.LINE_CHARS, {})
