"""The state of a run is loaded from its record, its containers and the newest lines of both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from contract.event_lines import encode_event
from contract.events import ResourcesSampled
from contract.log_lines import EVENT_MARK
from contract.resources import ResourceUsage
from orchestrator.fleet.runs.find_runs import RunningContainer, find_runs, running_containers
from orchestrator.fleet.runs.launch import launch
from orchestrator.fleet.runs.load_state import (
    LOOK_AHEAD,
    LOOK_BACK,
    load_state,
    read_record,
    recorded_progress,
    recorded_state,
    state_without_lines,
)
from orchestrator.fleet.runs.one_supervisor import only_supervisor
from orchestrator.fleet.runs.read_logs import collect_logs
from orchestrator.fleet.supervise.follow import follow
from orchestrator.fleet.supervise.followed import observed
from orchestrator.nodes.interface import LogLine
from orchestrator.specs import labels
from orchestrator.specs.errors import EngineError, NodeUnreachableError
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import JournalRead, LineRead, fact_of
from orchestrator.state.journal_entries import encode_entry
from orchestrator.state.phase import Phase, phase_of
from orchestrator.state.postmortem import write_postmortem
from orchestrator.state.progress import RunProgress, progress_of
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.store.record_file import NAME as RECORD
from orchestrator.store.run_record import RunRecord, plan_name, recording_in
from orchestrator.watch.evidence import gather_evidence
from tests import lan
from tests.each_case import failures_of
from tests.lan import event
from tests.run_streams import (
    CASES,
    RUN_ID,
    T0,
    Expected,
    Stream,
    continued_elsewhere,
    record_lost,
    unknown_events,
    unnamed_node,
)
from tests.unit.conftest import THREE
from tests.unit.test_one_verdict import state_of

NOW = 1767366010.0
"""2026-01-02T15:00:10Z: the lines of the nodes are of the seconds before."""


def launched(*says: str, ends_with: int | None = None) -> lan.Lan:
    here = lan.lan(*THREE, says=says, ends_with=ends_with)
    launch(here.nodes, lan.plan(THREE))
    return here


def loaded(here: lan.Lan) -> RunState:
    found = find_runs(list(here.nodes.values()))
    return load_state(found.runs[0], found, here.nodes, NOW)


def progress(state: RunState) -> RunProgress:
    return progress_of(state, phase_of(state), NOW)


def test_progress_is_the_newest_event_of_rank_0() -> None:
    here = launched(event("step", step=5, loss=2.5), event("checkpoint", step=6, verified=True), "[rank0]: talk")
    shown = progress(loaded(here))
    assert (shown.step, shown.loss, shown.last_line) == (6, 2.5, "rank 0: talk")


def foreign(here: lan.Lan, name: str, *texts: str) -> str:
    """A container that someone has started on a node, with the labels of the run and another attempt."""
    engine = here.nodes[name].engine
    spec, facts = next(iter(engine.made.values()))
    made = replace(facts, id="0" * 64, name="other", labels={**facts.labels, labels.LABEL_ATTEMPT: "9"})
    engine.made[made.id] = spec, made
    engine.lines[made.id] = [LogLine(time=f"2026-01-02T15:00:0{at}Z", text=text) for at, text in enumerate(texts, 1)]
    return made.id


FAILED = EVENT_MARK + '{"event": "finished", "outcome": "user", "node": "beta", "rank": 1, "reason": "out of memory"}'


def test_a_container_of_another_attempt_cannot_speak_for_the_run_that_is_followed() -> None:
    """The node did not answer at first, so that its container was looked for by labels."""
    here = launched(event("step", step=5))
    other = foreign(here, "alpha", FAILED, event("step", step=900))
    record, found = RunRecord(lan.IDENTITY.run_id), find_runs(list(here.nodes.values()))
    known = [one for one in running_containers(found.runs[0], here.nodes) if one.node.name != "alpha"]
    away = RunningContainer(node=here.nodes["alpha"], node_rank=0, id="")
    here.nodes["alpha"].engine.failures["logs"] = NodeUnreachableError("no answer", node="alpha")
    state, was_foreign = observed(record, known), False
    for each in islice(follow([away, *known], record, patient=True, tick_s=0.01, pause=lambda _s: None), 200):
        here.nodes["alpha"].engine.failures.pop("logs", None)
        if fact := fact_of(each, seen_now()):
            apply(state, fact)
        if was_foreign := bool(state.foreign):
            break
    assert was_foreign
    assert [(one.node, one.attempt) for one in state.foreign.values()] == [("alpha", 9)]
    judged = verdict(state, seen_now())
    assert (judged.phase, judged.reason, state.finished) == (Phase.RUNNING, "", None)
    assert [line.text for line in record.newest("alpha", other)][-1] == FAILED


@pytest.mark.parametrize(
    ("says", "code", "recorded"),
    [
        (event("done", step=5), 0, ("succeeded", "")),
        (FAILED, 1, ("failed", "out of memory")),
        ("[rank0]: hello", 137, None),  # Docker may start it again
        ("[rank0]: hello", None, None),
    ],
)
def test_a_look_records_the_end_that_it_sees(says: str, code: int | None, recorded: tuple[str, str] | None) -> None:
    here = launched(says, ends_with=code)
    loaded(here)
    assert RunRecord(lan.IDENTITY.run_id).outcome() == recorded


def test_a_look_leaves_the_end_to_the_process_that_follows_the_run() -> None:
    here = launched(event("done", step=5), ends_with=0)
    record = RunRecord(lan.IDENTITY.run_id)
    with only_supervisor(record):
        loaded(here)
    with record.recorder() as lock:
        assert lock.take()
        loaded(here)
    assert record.outcome() is None
    record.claim(lan.plan(THREE), THREE, "replan")
    loaded(here)
    assert record.outcome() is None


def test_ranks_that_run_again_are_not_restarting_although_their_start_is_not_among_the_lines() -> None:
    """The process that recorded the run has ended during a restart, and the nodes have written much since."""
    here = launched()
    record = RunRecord(lan.IDENTITY.run_id)
    for name, node in here.nodes.items():
        (id,) = node.engine.lines
        node.engine.write(id, lan.moment(1), EVENT_MARK + '{"event": "restarting", "generation": 1}')
        collect_logs([RunningContainer(node=node, node_rank=THREE.index(name), id=id)], record)
    assert phase_of(loaded(here)) is Phase.RESTARTING
    for node in here.nodes.values():
        (id,) = node.engine.lines
        node.engine.write(id, lan.moment(2), EVENT_MARK + '{"event": "generation", "generation": 2}')
        for _ in range(LOOK_BACK):
            node.engine.write(id, lan.moment(3), "[rank0]: working")
        node.engine.write(id, lan.moment(4), EVENT_MARK + '{"event": "output", "generation": 2, "step": 7, "rank": 0}')
    assert phase_of(loaded(here)) is Phase.RUNNING


def test_recorded_lines_of_another_container_do_not_speak_for_the_run() -> None:
    here = launched(event("step", step=5))
    record = RunRecord(lan.IDENTITY.run_id)
    other = foreign(here, "alpha", "[rank0]: Traceback (most recent call last):", "[rank0]: ValueError: no", FAILED)
    collect_logs([RunningContainer(node=here.nodes["alpha"], node_rank=0, id=other)], record)
    shown = write_postmortem(gather_evidence(list(here.nodes.values()), None))
    assert (shown.state, shown.failure) == ("running", None)
    assert progress_of(recorded_progress(record, NOW), Phase.RUNNING, NOW).step == 5
    assert phase_of(recorded_state(record, NOW)) is Phase.RUNNING


def test_the_last_step_and_the_remaining_time_stay_until_the_next_step() -> None:
    here = launched(event("step", step=5, final_step=50, remaining_s=90.0), event("evaluation", step=6, loss=2.0))
    shown = progress(loaded(here))
    assert (shown.step, shown.final_step) == (6, 50)
    assert shown.remaining_s is not None


def test_a_checkpoint_that_is_reported_late_takes_a_run_no_way_back() -> None:
    here = launched(event("checkpoint", step=6), event("step", step=9, loss=2.5), event("checkpoint", step=8))
    assert (progress(loaded(here)).step, progress(loaded(here)).loss) == (9, 2.5)


def test_resources_are_the_newest_sample_of_each_node_that_answers() -> None:
    def sample(cpu_percent: float) -> str:
        usage = ResourceUsage(cpu_percent=cpu_percent, cpus=2.0, ram_used_mib=10, ram_limit_mib=4096)
        return encode_event(ResourcesSampled(usage=usage))

    here = launched(sample(50.0), event("step", step=5), sample(75.0), "[rank0]: talk")
    here.nodes["gamma"].engine.failures["logs"] = EngineError("no answer", node="gamma")
    state = loaded(here)
    used = {node.name: node.usage.cpu_percent for node in state.members if node.usage}
    assert used == {"alpha": 75.0, "beta": 75.0}
    assert progress(state).step == 5


def test_no_progress_yet() -> None:
    assert progress(loaded(launched("[rank0]: hello", event("joined")))).step is None


def test_progress_that_cannot_be_asked_for_is_none() -> None:
    here = launched(event("step", step=5))
    here.nodes["alpha"].engine.failures["logs"] = EngineError("driver none does not support reading", node="alpha")
    assert progress(loaded(here)).step is None


def test_the_forecast_is_found_in_the_first_lines_alone() -> None:
    reported, talk = event("forecast", **lan.forecast()), ("[rank0]: talk",)
    near, far = launched(reported, *talk * 400), launched(*talk * (LOOK_AHEAD + 1), reported, *talk * 400)
    assert (loaded(near).forecast is None, loaded(far).forecast is None) == (False, True)


def test_recorded_events_and_lines_of_nodes_are_one_stream() -> None:
    """Restarts are counted by the record, of which the newest lines show only the last."""
    says = [event("generation", generation=1), event("step", step=5)]
    says += [event("restarting", outcome="infrastructure", generation=1), event("generation", generation=1)]
    here = launched(*says, *["[rank0]: talk"] * 400, event("step", step=9))
    found = find_runs(list(here.nodes.values()))
    record = RunRecord(found.runs[0].run_id)
    collect_logs(running_containers(found.runs[0], here.nodes), record)
    state = loaded(here)
    assert (state.restarts, progress(state).step, phase_of(state).value) == (1, 9, "running")
    assert state_without_lines(found.runs[0], found, NOW).restarts == 1
    assert recorded_state(record, NOW, unreachable=()).restarts == 1


def test_a_run_that_no_node_shows_is_loaded_from_its_record() -> None:
    here = launched(event("generation", generation=1), event("step", step=5), ends_with=0)
    found = find_runs(list(here.nodes.values()))
    record = RunRecord(found.runs[0].run_id)
    collect_logs(running_containers(found.runs[0], here.nodes), record)
    state = recorded_state(record, time.time(), unreachable=())
    assert (verdict(state, NOW).phase.value, progress(state).step) == ("unknown", 5)
    record.save_outcome("failed", "exit code 3")
    judged = verdict(recorded_state(record, time.time(), unreachable=()), NOW)
    assert (judged.phase.value, judged.severity, judged.reason) == ("failed", "error", "exit code 3")


def test_what_is_stored_gets_the_verdict_of_what_was_read_live() -> None:
    """The record with its entries, plans and lines, and what is seen of containers and nodes."""

    def check(make: Callable[[], Stream], expected: Expected) -> None:
        stream, now = make(), T0 + expected.at
        facts = stream.facts
        with TemporaryDirectory() as folder, recording_in(Path(folder)):
            store(stream)
            replayed, record = RunState(run_id=RUN_ID), RunRecord(RUN_ID)
            apply(replayed, JournalRead(seen=T0, journal=record.journal, plan=record.plan()))
            for fact in facts:
                if not isinstance(fact, LineRead | JournalRead):
                    apply(replayed, fact)
            read_record(replayed, record, now)
        live = state_of(facts)
        judged, wanted = verdict(replayed, now), verdict(live, now)
        assert (judged.phase, judged.conditions) == (wanted.phase, wanted.conditions)
        assert replayed.restarts == live.restarts
        assert progress_of(replayed, judged.phase, now) == progress_of(live, wanted.phase, now)

    not_stored = (record_lost, unnamed_node, unknown_events, continued_elsewhere)  # or by another computer
    cases = [(make, row) for make, row in CASES if make not in not_stored]
    assert failures_of(check, cases) == []


def store(stream: Stream) -> None:
    """Write what a supervisor writes: entries, plans and lines."""
    record = RunRecord(RUN_ID)
    record.folder.mkdir(parents=True)
    (record.folder / RECORD).write_text("".join(map(encode_entry, stream.entries)))
    for fact in stream.facts:
        if isinstance(fact, JournalRead) and fact.plan:
            (record.folder / plan_name(fact.plan.attempt)).write_text(to_json(fact.plan))
        elif isinstance(fact, LineRead):
            with record.open_log(fact.line.node, fact.line.container) as log:
                log.add(fact.line)
