"""Containers with a run's label that are no part of it: shown, ended by `orch stop`, no input of the run's state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract.run_folder import STOPPED
from orchestrator.fleet.runs.find_runs import find_runs, must_be_over
from orchestrator.fleet.runs.stop import _MARK, FOREIGN
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import ConflictError, NodeUnreachableError
from orchestrator.specs.run import State
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached


def plant(node: FakeNode, run_id: str, attempt: int, *, ends_with: int | None = 1, text: str = "") -> str:
    """Put a container on the node whose labels name this run and attempt; the id of the container."""
    plan = lan.plan(THREE, replace(lan.IDENTITY, run_id=run_id, attempt=attempt))
    part = next(part for part in plan.nodes if part.node == node.name)
    container = node.engine.create(replace(part.container, name=f"planted-{attempt}"))
    node.engine.start(container)
    if text:
        node.engine.write(container, lan.moment(50), text)
    if ends_with is not None:
        node.engine.finish(container, ends_with)
    return container


@pytest.fixture
def here() -> lan.Lan:
    return lan.lan(*THREE, ends_with=None)


def no_record(state: Path, run_id: str) -> None:
    shutil.rmtree(state / "runs" / run_id)


@pytest.mark.parametrize("recorded", [True, False], ids=["with a record", "without one"])
@pytest.mark.parametrize("named", [True, False], ids=["by its id", "without an id"])
@pytest.mark.parametrize("runs", [True, False], ids=["still running", "ended"])
def test_stop_ends_all_that_has_the_label(
    orch: Orch, here: lan.Lan, state: Path, *, recorded: bool, named: bool, runs: bool
) -> None:
    """Earlier: "stopped", exit 0, while all ranks continued; without an id: "you have no active run", exit 2."""
    run_id = detached(orch, here)
    plant(here.nodes["beta"], run_id, 7, ends_with=None if runs else 1)
    if not recorded:
        no_record(state, run_id)
    ran = orch("stop", *([run_id] if named else []), "--yes", on=here)
    assert (ran.code, here.containers) == (0, {}), ran.err
    assert f"stopping run {run_id} on alpha, beta, gamma\n" in ran.err
    assert f"✓ run {run_id} stopped, no checkpoint\n" in ran.err


@pytest.mark.parametrize("recorded", [True, False], ids=["with a record", "without one"])
def test_the_run_is_shown_and_the_other_container_beside_it(
    orch: Orch, here: lan.Lan, state: Path, *, recorded: bool
) -> None:
    """Earlier behavior: failed; rank 0 lost, "no node holds its container"."""
    run_id = detached(orch, here)
    plant(here.nodes["beta"], run_id, 7)
    if not recorded:
        no_record(state, run_id)
    beside = "beta has a container (attempt 7) that is no part of the run: it has ended\n  → orch stop"
    shown = orch("status", run_id, "--json", on=here)
    data = json_data(shown.out)
    assert (shown.code, data["state"], data["attempt"]) == (0, "running", 0)
    assert [(one["node"], one["attempt"], one["state"]) for one in data["foreign"]] == [("beta", 7, "failed")]
    for command in ("status", "runs"):
        ran = orch(command, on=here)
        assert (ran.code, beside in ran.err) == (0, True), ran.err
        assert "running" in ran.out


@pytest.mark.parametrize("command", ["resume", "restart"])
def test_no_attempt_begins_beside_a_container_that_runs(orch: Orch, here: lan.Lan, command: str) -> None:
    run_id = detached(orch, here)
    for node in here.nodes.values():
        for container in list(node.engine.made):
            node.engine.finish(container, 1)
    planted = plant(here.nodes["beta"], run_id, 7, ends_with=None)
    ran = orch(command, run_id, "--yes", "--detach", on=here)
    running = [
        name for name, node in here.nodes.items() for one in node.engine.containers({}) if one.state is State.RUNNING
    ]
    if command == "resume":  # it stops nothing
        assert (ran.code, running) == (6, ["beta"]), ran.err
        assert f"run {run_id} still runs on beta\n" in ran.err
        with pytest.raises(ConflictError, match="still runs on beta"):
            must_be_over(find_runs(list(here.nodes.values())), run_id)
    else:
        assert (ran.code, running, planted in here.nodes["beta"].engine.made) == (0, list(THREE), False), ran.err


def test_its_lines_stay_separate(orch: Orch, here: lan.Lan) -> None:
    run_id = detached(orch, here)
    plant(here.nodes["beta"], run_id, 7, text=lan.event("checkpoint", step=9999, verified=True))
    ran = orch("stop", run_id, on=here)
    assert f"✓ run {run_id} stopped, no checkpoint\n" in ran.err
    record = RunRecord(run_id)
    assert list(record.lines()) == []
    assert [file.name.partition("@")[0] for file in (record.folder / FOREIGN / "lines").iterdir()] == ["beta"]


def test_what_most_recorded_nodes_show_is_the_run(orch: Orch, here: lan.Lan) -> None:
    """Another computer has continued it."""
    run_id = detached(orch, here)
    for name in ("alpha", "beta"):
        plant(here.nodes[name], run_id, 1, ends_with=None)
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.attempt, run.foreign, len(run.earlier)) == (1, (), 3)
    reported = "! attempt 1 was started from another computer by ana; this one launched attempt 0"
    assert reported in orch("status", run_id, on=here).err


def test_without_a_record_a_node_has_one_vote(orch: Orch, here: lan.Lan, state: Path) -> None:
    """Its last attempt: ended containers of earlier ones stay where a resume took fewer nodes."""
    run_id = detached(orch, here)
    for node in here.nodes.values():
        for container in list(node.engine.made):
            node.engine.finish(container, 1)
    for name in ("alpha", "beta"):
        plant(here.nodes[name], run_id, 1, ends_with=0)
    no_record(state, run_id)
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.attempt, [attempt for attempt, _ in run.earlier]) == (1, [0, 0, 0])


def test_a_copied_claim_is_not_the_run(orch: Orch, here: lan.Lan) -> None:
    """The labels of another container, to the letter: its id is not on record."""
    detached(orch, here)
    beta = here.nodes["beta"].engine
    ((spec, facts),) = beta.made.values()
    beta.finish(copied := beta.create(replace(spec, name="copied")), 1)
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.attempt, run.state, run.foreign[0][1].container) == (0, State.RUNNING, beta.made[copied][1])
    assert [one.container.id for one in run.members if one.node == "beta" and one.container] == [facts.id]


# ── The word "stopped" ────────────────────────────────────────────────────────────────────────────────────────────────


def silence(node: FakeNode) -> None:
    node.engine.failures["containers"] = NodeUnreachableError("no answer in 5 s", node=node.name)


def test_a_container_that_is_there_after_the_stop_is_named(orch: Orch, here: lan.Lan) -> None:
    """A supervisor on another computer has started it meanwhile, or the engine did not end it."""
    run_id = detached(orch, here)
    engine = here.nodes["beta"].engine
    stop = engine.stop

    def starts_another(container: str, timeout_s: int) -> None:
        stop(container, timeout_s)
        plant(here.nodes["beta"], run_id, 1, ends_with=None)

    engine.stop = starts_another  # type: ignore[method-assign]
    ran = orch("stop", run_id, on=here)
    assert ran.code == 5
    assert f"run {run_id} stopped on alpha, gamma (no checkpoint), but may still run on beta\n" in ran.err
    assert "  beta: it shows a container\n" in ran.err


def test_a_node_of_the_record_that_is_not_asked_is_named(orch: Orch, here: lan.Lan) -> None:
    run_id = detached(orch, here)
    text = Path("inventory.yaml").read_text()
    Path("inventory.yaml").write_text("".join(line for line in text.splitlines(keepends=True) if "gamma" not in line))
    ran = orch("stop", run_id, on=here)
    assert (ran.code, here.containers) == (5, {"gamma": ["orch-run"]})
    assert "may still run on gamma\n  gamma: it is not in the inventory\n" in ran.err


def test_a_node_that_was_given_up_is_named_while_it_is_away(orch: Orch, here: lan.Lan) -> None:
    run_id = detached(orch, here)
    record = RunRecord(run_id)
    plan = record.plan()
    assert plan is not None
    record.save_plan(replace(plan, nodes=plan.nodes[:2], nnodes=2, away=("gamma",)))
    silence(here.nodes["gamma"])
    ran = orch("stop", run_id, on=here)
    assert (ran.code, list(here.containers)) == (5, ["gamma"])
    assert "may still run on gamma\n  gamma: no answer in 5 s\n" in ran.err


def test_a_silent_node_that_is_no_part_of_the_run_does_not_count(orch: Orch, here: lan.Lan) -> None:
    run_id = json_data(orch("launch", "--detach", "--json", "--nodes", "alpha,beta", on=here).out)["run_id"]
    silence(here.nodes["gamma"])
    assert orch("stop", run_id, on=here).code == 0


def test_nodes_that_answer_are_marked_before_anything_is_stopped(orch: Orch, here: lan.Lan) -> None:
    run_id = detached(orch, here)
    order: list[str] = []
    for node in here.nodes.values():
        node.engine.stop = noting(order, "stop", node.engine.stop)  # type: ignore[method-assign]
        node.run = noting(order, "mark", node.run, only=_MARK)  # type: ignore[method-assign]
    assert orch("stop", run_id, on=here).code == 0
    assert order == ["mark"] * 3 + ["stop"] * 3
    marks = [call for call in here.nodes["alpha"].calls if _MARK in call]
    assert [call[4:6] for call in marks] == [("/home/ana/orch/orch", run_id)]
    assert marks[0][6].startswith("stopped by ")


def noting(order: list[str], word: str, call: Callable[..., object], only: str = "") -> Callable[..., object]:
    def noted(*args: object, **named: object) -> object:
        if not only or only in args[0]:  # type: ignore[operator]
            order.append(word)
        return call(*args, **named)

    return noted


def test_a_label_does_not_choose_the_folder_of_the_mark(orch: Orch, here: lan.Lan, state: Path) -> None:
    run_id = detached(orch, here)
    for node in here.nodes.values():
        for container, (spec, facts) in list(node.engine.made.items()):
            labels = {**facts.labels, "orch.project": "../../elsewhere"}
            node.engine.made[container] = (spec, replace(facts, labels=labels))
    no_record(state, run_id)
    assert orch("stop", run_id, on=here).code == 0
    assert [call for node in here.nodes.values() for call in node.calls if _MARK in call] == []


def test_the_mark_is_written_where_the_run_has_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a project/runs/r1"
    folder.mkdir(parents=True)
    for run_id in ("r1", "r2"):
        argv = ["sh", "-c", _MARK, "sh", str(tmp_path / "a project"), run_id, "stopped by ana", STOPPED]
        LocalNode().run(argv).check("marking")
    assert [path.relative_to(folder.parent).as_posix() for path in folder.parent.rglob("*")] == ["r1", "r1/stopped"]
    assert (folder / STOPPED).read_text() == "stopped by ana\n"
