"""Supervision of a run on machines that exist in memory alone: killed, cut off, given up, added back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Condition

import pytest

from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.one_supervisor import only_supervisor, supervisor_of, supervisor_sought
from orchestrator.fleet.runs.stop import stop_run
from orchestrator.fleet.supervise.loop import LatestOnly
from orchestrator.fleet.supervise.replan import NodePool, fit
from orchestrator.render.recovery import recovery_line
from orchestrator.specs.errors import ConflictError, EngineError, OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import NodeBack, NodeLost, Replanned, RunLine, Tick
from orchestrator.state.facts import SupervisorSought
from orchestrator.state.journal_entries import RunEntry, encode_entry
from orchestrator.state.phase import Phase
from orchestrator.state.recovery import AddNodes, GiveUp, Replan, StartContainer, Update
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.lan import event
from tests.unit.scene import THREE, Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.time.pass_(1e6)  # who still waits may go


def once(condition: Callable[[Update], bool], *acts: Callable[[], object]) -> Callable[[Update], None]:
    """Each act at the first event that the condition takes, one after the other."""
    left = list(acts)

    def hear(update: Update) -> None:
        if left and condition(update):
            left.pop(0)()

    return hear


def is_replanned(update: Update) -> bool:
    return isinstance(update, Replanned)


def test_a_container_that_was_killed_is_started_again(scene: Scene) -> None:
    plan, containers = scene.begin()
    scene.engines["gamma"].finish(scene.container("gamma"), 137)
    starts = len([call for call in scene.engines["gamma"].calls if call[0] == "start"])

    def then(update: Update) -> None:
        if isinstance(update, Tick) and scene.updates_of(StartContainer):
            scene.finish()

    outcome = scene.watch(plan, containers, then)
    assert scene.updates_of(StartContainer) == [StartContainer(node="gamma")]
    assert len([call for call in scene.engines["gamma"].calls if call[0] == "start"]) == starts + 1
    assert (outcome.phase, RunRecord(plan.run_id).outcome()) == (Phase.SUCCEEDED, ("succeeded", ""))


def test_a_lost_node_that_comes_back_costs_nothing(scene: Scene) -> None:
    plan, containers = scene.begin()
    scene.engines["gamma"].pull()

    def then(update: Update) -> None:
        if isinstance(update, NodeLost):
            scene.engines["gamma"].put_back()
        if isinstance(update, NodeBack):
            scene.say("gamma", "[rank2]: here again")
            scene.finish()

    outcome = scene.watch(plan, containers, then)
    assert (outcome.phase, outcome.failure) == (Phase.SUCCEEDED, None)
    texts = [line.text for line in RunRecord(plan.run_id).lines("gamma")]
    assert texts.count("here again") == 1


def test_a_log_that_ends_without_an_error_is_taken_up_again(scene: Scene) -> None:
    """The connection broke; the container, which runs, would be waited for in silence."""
    plan, containers = scene.begin()

    def speak() -> None:
        scene.engines["gamma"].hang_up()
        scene.say("gamma", "[rank2]: here still")

    begin = once(lambda update: isinstance(update, Tick), speak)

    def then(update: Update) -> None:
        begin(update)
        if isinstance(update, RunLine) and update.text == "here still":
            scene.finish()

    assert scene.watch(plan, containers, then).phase is Phase.SUCCEEDED


def test_a_node_that_stays_away_ends_a_run_that_needs_all(scene: Scene) -> None:
    plan, containers = scene.begin()
    scene.engines["gamma"].pull()
    outcome = scene.watch(plan, containers, lambda _event: None)
    assert outcome.failure is not None
    assert (outcome.failure.node, outcome.failure.rank) == ("gamma", 2)
    assert outcome.failure.reason.startswith("no answer in 5 s, for 1")
    (given_up,) = scene.updates_of(GiveUp)
    assert recovery_line(given_up).startswith("✗ gamma gone for 1")
    for name in THREE[:2]:
        assert "stop" in [call[0] for call in scene.engines[name].calls]
    assert RunRecord(plan.run_id).outcome() == ("failed", outcome.failure.reason)


def test_a_node_whose_gpu_is_lost_takes_no_part_until_it_is_back(scene: Scene) -> None:
    plan, _ = scene.begin(min_nodes=2)
    pool = NodePool(nodes=scene.nodes, request=scene.request)
    asked = ("sh", "-c", lan.probe.SCRIPT, "*")
    lost = lan.probe_answer("gamma", smi_exit="15", gpu="GPU 0000:01:00.0 is lost")
    scene.nodes["gamma"].answers[asked] = (0, lost, "")
    facts, refused = fit(pool, THREE, plan.run_id)
    assert list(facts) == ["alpha", "beta"]
    assert refused == ["gamma: a GPU fell off the bus (nvidia-smi: GPU 0000:01:00.0 is lost)"]
    scene.nodes["gamma"].answers[asked] = (0, lan.probe_answer("gamma"), "")
    assert list(fit(pool, THREE, plan.run_id)[0]) == list(THREE)


def test_given_up_continued_without_and_added_again(scene: Scene) -> None:
    plan, containers = scene.begin(min_nodes=2)
    scene.engines["gamma"].pull()
    attempts: list[Plan] = []

    def then(update: Update) -> None:
        if isinstance(update, Replanned):
            attempts.append(update.plan)
            if len(attempts) == 1:
                scene.engines["gamma"].put_back()
            else:
                scene.finish()
        if isinstance(update, NodeBack) and update.node_rank is None:
            lan.keep_checkpoint(scene.nodes["alpha"], plan.run_id, 40)
            scene.say("alpha", lan.written(40))

    outcome = scene.watch(plan, containers, then)

    assert scene.updates_of(Replan) == [Replan(without=("gamma",), left=("alpha", "beta"))]
    assert scene.updates_of(AddNodes) == [AddNodes(nodes=("gamma",))]
    without, again = attempts
    assert ([part.node for part in without.nodes], without.attempt, without.away) == (["alpha", "beta"], 1, ("gamma",))
    assert ([part.node for part in again.nodes], again.attempt, again.away) == (list(THREE), 2, ())
    for attempt in attempts:
        assert attempt.command == ("gpt2", "--batch-size", "2", "--global-batch-size", "6")
        assert (attempt.run_id, attempt.min_nodes, attempt.max_restarts) == (plan.run_id, 2, 2)
    assert (outcome.phase, outcome.then) == (Phase.SUCCEEDED, None)
    assert RunRecord(plan.run_id).plan() == again
    for engine in scene.engines.values():  # at most one container for each run and rank
        assert [facts.labels["orch.attempt"] for _, facts in engine.made.values()] == ["2"]
    assert scene.copies == [(["alpha", "beta"], 40)]


def test_the_master_is_lost_and_its_place_goes_where_the_newest_checkpoint_lies(scene: Scene) -> None:
    plan, containers = scene.begin(min_nodes=2)
    lan.keep_checkpoint(scene.nodes["beta"], plan.run_id, 60, damaged=True)
    lan.keep_checkpoint(scene.nodes["gamma"], plan.run_id, 40)
    for step in (40, 60):
        scene.record(step)
    scene.engines["alpha"].pull()
    outcome = scene.watch(plan, containers, once(is_replanned, lambda: scene.finish(names=THREE[1:])))
    (moved,) = [each.plan for each in scene.updates if isinstance(each, Replanned)]
    assert ([part.node for part in moved.nodes], moved.master) == (["gamma", "beta"], "gamma")
    assert outcome.phase is Phase.SUCCEEDED
    assert scene.brought[:2] == [
        "beta: checkpoint of step 60 not used: state.pt has changed since it was written (sha256 differs)",
        "gamma: resuming from step 40, intact on gamma",
    ]


def test_it_does_not_begin_again_where_its_checkpoints_are_out_of_reach(scene: Scene) -> None:
    plan, containers = scene.begin(min_nodes=2)
    scene.say("alpha", lan.written(40))
    received = once(lambda each: isinstance(each, RunLine) and "checkpoint" in each.text, scene.engines["alpha"].pull)
    outcome = scene.watch(plan, containers, received)
    assert outcome.failure is not None
    assert outcome.failure.reason == "the run's checkpoint of step 40 was on alpha, and no node that answers has one"
    assert [len(scene.engines[name].made) for name in THREE] == [1, 0, 0]


def test_what_cannot_be_planned_again_is_reported(scene: Scene) -> None:
    plan, containers = scene.begin(min_nodes=2)
    scene.engines["gamma"].pull()
    scene.engines["beta"].failures["create"] = EngineError("no space left on device", node="beta")
    outcome = scene.watch(plan, containers, lambda _event: None)
    assert outcome.failure is not None
    assert (outcome.failure.node, outcome.failure.reason) == ("beta", "beta: no space left on device")
    assert RunRecord(plan.run_id).outcome() == ("failed", "beta: no space left on device")


def test_orch_stop_is_not_undone(scene: Scene) -> None:
    plan, containers = scene.begin()
    record = RunRecord(plan.run_id)

    def kill() -> None:
        for engine in scene.engines.values():
            engine.failures.pop("stop", None)
        stop_run(list(scene.nodes.values()), record, timeout_s=0)

    outcome = scene.watch(plan, containers, once(lambda each: isinstance(each, Tick), kill))
    assert (outcome.phase, outcome.failure) == (Phase.STOPPED, None)
    assert scene.updates_of(StartContainer) == []


def test_a_supervisor_may_be_started_while_a_node_is_away(scene: Scene) -> None:
    """Its container is not known; it is looked for by its labels when the node answers."""
    plan, containers = scene.begin()
    scene.engines["beta"].pull()
    blind = [
        container if container.node.name != "beta" else RunningContainer(node=container.node, node_rank=1, id="")
        for container in containers
    ]

    def then(update: Update) -> None:
        if isinstance(update, NodeLost):
            scene.engines["beta"].put_back()
        if isinstance(update, NodeBack):
            scene.finish()

    assert scene.watch(plan, blind, then).phase is Phase.SUCCEEDED
    (came,) = [update for update in scene.updates if isinstance(update, NodeBack)]
    assert came.container == scene.container("beta")


def test_a_supervisor_that_died_between_two_attempts_leaves_it_to_the_next(scene: Scene) -> None:
    plan, containers = scene.begin(min_nodes=2)
    RunRecord(plan.run_id).claim(plan, ("alpha", "beta"), "replan")
    outcome = scene.watch(plan, containers, once(is_replanned, lambda: scene.finish(names=THREE[:2])))
    assert outcome.phase is Phase.SUCCEEDED
    assert RunRecord(plan.run_id).next() is None


def test_cut_off_from_all_it_waits_and_then_says_so(scene: Scene) -> None:
    plan, containers = scene.begin()
    for engine in scene.engines.values():
        engine.pull()
    outcome = scene.watch(plan, containers, lambda _event: None)
    assert (outcome.phase, outcome.failure) == (Phase.LOST, None)
    assert scene.time.now >= 600


def test_what_the_supervisors_agreed_on_is_the_reason(scene: Scene) -> None:
    plan, containers = scene.begin()
    over = {"outcome": "user", "exit_code": 1, "reason": "ValueError: no", "frame": "train.py:3"}
    for rank, name in enumerate(THREE):
        line = event("finished", **over).partition(": ")[2].replace('"rank": 0', '"rank": 2, "node": "gamma"')
        scene.engines[name].write(scene.container(name), lan.moment(rank), line)
    scene.engines["gamma"].write(scene.container("gamma"), lan.moment(9), "[rank2]: ValueError: no")
    scene.finish(1)
    failure = scene.watch(plan, containers, lambda _event: None).failure
    assert failure is not None
    assert (failure.node, failure.rank, failure.exit_code, failure.reason) == ("gamma", 2, 1, "ValueError: no")
    assert scene.updates_of(StartContainer) == []


# ── One supervisor, and what is done beside it ──────────────────────────────────────────────────────────────────


def test_at_most_one_watches_a_run() -> None:
    record = RunRecord("r1")
    assert supervisor_of(record) is None
    looks: list[float] = []
    with only_supervisor(record):
        assert supervisor_of(record)
        second = only_supervisor(record, tries=3, rest=looks.append)
        with pytest.raises(ConflictError, match="run r1 is supervised already, by process"):
            second.__enter__()
        with only_supervisor(RunRecord("r2")):
            pass
    assert len(looks) == 2
    assert supervisor_of(record) is None
    with only_supervisor(record):
        assert supervisor_of(record)


def test_a_run_of_this_computer_has_a_supervisor_or_none_and_of_others_nothing_is_known() -> None:
    record = RunRecord("r1")
    assert supervisor_sought(record, 5.0) == SupervisorSought(seen=5.0, found=None)
    record.save_intent(replace(lan.plan(), run_id="r1"))
    assert supervisor_sought(record, 5.0).found is False
    with only_supervisor(record):
        assert supervisor_sought(record, 5.0).found is True
    assert supervisor_sought(record, 5.0).found is False
    other = RunRecord("r2")
    other.folder.mkdir(parents=True)
    (other.folder / "record.jsonl").write_text(encode_entry(RunEntry(run_id="r2", host="another")))
    assert supervisor_sought(other, 5.0).found is None


def test_of_work_that_waits_the_newest_is_done() -> None:
    gate, done, errors = Condition(), list[int](), list[OrchError]()
    open_ = [False]

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            with gate:
                gate.wait_for(lambda: open_[0], timeout=20)
            done.append(number)
            if number == 3:
                raise EngineError("disk full")

        return run

    turn = LatestOnly(errors.append)
    for number in (1, 2, 3):
        turn.add(work(number))
    with gate:
        open_[0] = True
        gate.notify_all()
    turn.finish(20)
    assert done == [1, 3]
    assert [str(error) for error in errors] == ["disk full"]
