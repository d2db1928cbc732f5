"""The plan of an earlier run: from this controller's record, else from a node's folder by the real script."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.fleet.runs.recall import recall_plan
from orchestrator.fleet.runs.records import RunRecord
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import RunIdentity
from tests import lan


def plan_of(run_id: str, attempt: int = 0) -> Plan:
    return lan.plan(identity=RunIdentity(run_id=run_id, user="ana", started_at="2026", attempt=attempt))


def recall(workspaces: dict[str, Path], run_id: str) -> Plan:
    """Asks nodes that are this computer, each with a workspace of its own."""
    specs = {name: lan.spec(name, workspace=str(folder)) for name, folder in workspaces.items()}
    return recall_plan([LocalNode(name) for name in workspaces], specs, "orch", run_id)


def leave(workspace: Path, plan: Plan) -> None:
    folder = workspace / "orch/runs" / plan.run_id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(to_json(plan))


def test_from_the_record_without_asking_anybody() -> None:
    RunRecord("red-1").save_plan(plan_of("red-1"))
    RunRecord("red-12").save_plan(plan_of("red-12"))
    RunRecord("blue-1").save_plan(plan_of("blue-1"))
    assert recall_plan([], {}, "orch", "red-1").run_id == "red-1"
    assert recall_plan([], {}, "orch", "b").run_id == "blue-1"
    with pytest.raises(ConfigError, match="2 runs begin with red: red-1, red-12"):
        recall_plan([], {}, "orch", "red")


def test_from_the_nodes_the_newest_attempt(tmp_path: Path) -> None:
    places = {"alpha": tmp_path / "a b", "beta": tmp_path / "b"}
    leave(places["alpha"], plan_of("red-1"))
    leave(places["beta"], plan_of("red-1", attempt=2))
    assert recall(places, "red-1").attempt == 2
    assert recall(places, "re").attempt == 2


def test_several_runs_of_one_node_begin_so(tmp_path: Path) -> None:
    for run_id in ("red-1", "red-12"):
        leave(tmp_path, plan_of(run_id))
    assert recall({"alpha": tmp_path}, "red-1").run_id == "red-1"
    with pytest.raises(ConfigError, match="2 runs begin with red: red-1, red-12"):
        recall({"alpha": tmp_path}, "red")


def test_runs_of_two_nodes_begin_so(tmp_path: Path) -> None:
    places = {"alpha": tmp_path / "a", "beta": tmp_path / "b"}
    leave(places["alpha"], plan_of("red-1"))
    leave(places["beta"], plan_of("red-2"))
    with pytest.raises(ConfigError, match="2 runs begin with red: red-1, red-2"):
        recall(places, "red")


@pytest.mark.parametrize("wanted", ["red", "*", "$(id)", "-e"])
def test_nowhere(tmp_path: Path, wanted: str) -> None:
    leave(tmp_path, plan_of("blue"))
    with pytest.raises(ConfigError, match=r"no plan of a run .*, neither here nor on a node") as caught:
        recall({"alpha": tmp_path}, wanted)
    assert caught.value.hint == "orch runs"


def test_who_did_not_answer_is_said() -> None:
    silent = FakeNode("alpha", answers={("sh", "*"): NodeUnreachableError("no answer in 5 s", node="alpha")})
    with pytest.raises(ConfigError) as caught:
        recall_plan([silent], {"alpha": NodeSpec(name="alpha", address="10.0.0.1")}, "orch", "red")
    assert caught.value.hint == "alpha did not answer"


def test_a_broken_plan_is_named(tmp_path: Path) -> None:
    leave(tmp_path, plan_of("red"))
    (tmp_path / "orch/runs/red/plan.json").write_text('{"run_id": 7}')
    with pytest.raises(ConfigError, match=r"plan.json on alpha is not a plan of this version") as caught:
        recall({"alpha": tmp_path}, "red")
    assert any(problem.startswith("run_id: ") for problem in caught.value.problems)
