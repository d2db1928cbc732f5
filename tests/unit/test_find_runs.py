"""Runs found again by the labels of their containers, and how they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.fleet.runs.find_runs import find_runs, run_on_nodes, running_containers
from orchestrator.fleet.runs.launch import launch
from orchestrator.specs.errors import ConfigError, EngineError, NodeUnreachableError, PreflightError
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.run import Run, State
from orchestrator.store.run_record import RunRecord
from tests import lan

THREE = lan.NAMES[:3]


def launched(here: lan.Lan, run_id: str, day: int = 2, attempt: int = 0) -> None:
    identity = RunIdentity(run_id=run_id, user="ana", started_at=f"2026-01-{day:02d}T00:00:00+00:00", attempt=attempt)
    launch(here.nodes, lan.plan(tuple(here.nodes), identity))


def test_a_run_is_whole_again() -> None:
    here = lan.lan(*THREE, ends_with=None)
    launched(here, "r1")
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.run_id, run.state, run.nnodes, run.master, run.command) == ("r1", State.RUNNING, 3, "alpha", "gpt2")
    assert [(member.node, member.node_rank) for member in run.members] == list(zip(THREE, range(3), strict=True))
    assert [one.node.name for one in running_containers(run, here.nodes)] == list(THREE)


@pytest.mark.parametrize(("codes", "state"), [((0, 0, 0), State.SUCCEEDED), ((None, 1, None), State.RUNNING)])
def test_ranks_on_nodes_that_are_not_asked_are_not_lost(codes: tuple[int | None, ...], state: State) -> None:
    here = lan.lan(*THREE)
    for name, code in zip(THREE, codes, strict=True):
        here.nodes[name].engine.ends_with = code  # type: ignore[attr-defined]  # an Actor
    launched(here, "r1")
    chosen = [here.nodes["alpha"], here.nodes["gamma"]]
    (run,) = find_runs(chosen, some=True).runs
    assert (run.state, [member.node for member in run.members], run.nnodes) == (state, ["alpha", "gamma"], 3)
    assert not run.half_launched
    assert find_runs(chosen).runs[0].state is State.LOST


def test_runs_come_newest_first() -> None:
    here = lan.lan("alpha")
    for day, run_id in enumerate(("old", "middle", "new"), start=1):
        launched(here, run_id, day)
    found = find_runs(list(here.nodes.values()))
    assert [run.run_id for run in found.runs] == ["new", "middle", "old"]
    assert run_on_nodes(found, None).run_id == "new"


def test_the_newest_attempt_counts() -> None:
    here = lan.lan(*THREE, ends_with=1)
    launched(here, "r1")
    for name in THREE:
        here.nodes[name].engine.ends_with = 0  # type: ignore[attr-defined]  # an Actor
    launched(here, "r1", attempt=1)
    (run,) = find_runs(list(here.nodes.values())).runs
    assert (run.attempt, run.state, len(run.members)) == (1, State.SUCCEEDED, 3)


@pytest.mark.parametrize(
    ("codes", "state"),
    [((0, 0, 0), State.SUCCEEDED), ((0, None, 0), State.RUNNING), ((0, None, 1), State.FAILED)],
)
def test_a_run_is_as_healthy_as_its_worst_member(codes: tuple[int | None, ...], state: State) -> None:
    here = lan.Lan()
    for name, code in zip(THREE, codes, strict=True):
        here.add(name, ends_with=code)
    launched(here, "r1")
    assert find_runs(list(here.nodes.values())).runs[0].state is state


def test_an_empty_group_is_lost() -> None:
    run = Run(run_id="r", project="p", attempt=0, user="u", started_at="", nnodes=0, command="", master="", members=())
    assert run.state is State.LOST


def test_a_container_that_is_gone_is_lost() -> None:
    here = lan.lan(*THREE, ends_with=None)
    launched(here, "r1")
    here.nodes["beta"].engine.made.clear()
    (run,) = find_runs(list(here.nodes.values())).runs
    assert run.state is State.LOST
    lost = run.members[1]
    assert (lost.node, lost.node_rank, lost.state, lost.reason) == (
        "beta", 1, State.LOST, "no node holds its container",
    )  # fmt: skip
    RunRecord("r1").save_plan(replace(lan.plan(THREE), run_id="r1", attempt=7))
    (run,) = find_runs(list(here.nodes.values())).runs
    assert run.members[1].node == "?", "the plan on record is of another attempt"


def test_a_node_that_does_not_answer_may_hold_it() -> None:
    here = lan.lan(*THREE, ends_with=None)
    launched(here, "r1")
    here.nodes["beta"].engine.failures["containers"] = NodeUnreachableError("no answer in 5 s", node="beta")
    found = find_runs(list(here.nodes.values()))
    assert list(found.unreachable) == ["beta"]
    assert found.runs[0].state is State.LOST
    assert found.runs[0].members[1].reason == "beta did not answer"


def test_choosing_by_the_beginning_of_an_id() -> None:
    here = lan.lan("alpha")
    for run_id in ("red", "reddish", "blue"):
        launched(here, run_id)
    found = find_runs(list(here.nodes.values()))
    assert run_on_nodes(found, "b").run_id == "blue"
    assert run_on_nodes(found, "red").run_id == "red"
    assert run_on_nodes(found, "re").run_id == "red"  # as old as the other, and first in the list
    with pytest.raises(ConfigError, match="no run green on any node or on record on this computer") as caught:
        run_on_nodes(found, "green")
    assert caught.value.hint == "orch runs"


def test_a_run_that_may_be_on_a_node_that_is_silent() -> None:
    here = lan.lan("alpha")
    launched(here, "red")
    found = find_runs([*here.nodes.values(), lan.silent("beta")])
    with pytest.raises(
        PreflightError, match="no run green on the nodes that answered; beta did not answer and may hold it"
    ):
        run_on_nodes(found, "green")


def test_a_run_that_only_this_controller_remembers() -> None:
    RunRecord("green-1").save_plan(lan.plan())
    found = find_runs(list(lan.lan("alpha").nodes.values()))
    with pytest.raises(ConfigError, match="no run green on any node, only on record on this computer") as caught:
        run_on_nodes(found, "green")
    assert caught.value.hint == "orch logs green"


def test_no_runs() -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"].engine.failures["containers"] = EngineError("no engine", node="beta")
    with pytest.raises(PreflightError, match="no node that answered knows of a run; beta did not answer"):
        run_on_nodes(find_runs(list(here.nodes.values())), None)


def test_labels_of_a_foreign_tool_are_no_member() -> None:
    """The run's label alone counts."""
    here = lan.lan("alpha")
    plain = replace(lan.plan(("alpha",)).nodes[0].container, name="other", labels={"com.example": "x"})
    here.nodes["alpha"].engine.create(plain)
    assert find_runs(list(here.nodes.values())).runs == ()
