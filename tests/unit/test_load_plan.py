"""The plan of an earlier run: from this controller's record, else from a node's folder by the real script."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.fleet.runs.load_plan import SEVERAL
from orchestrator.fleet.runs.load_plan import recall as asked
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import ConfigError, NodeUnreachableError, PreflightError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.launch_options import NUMBERS
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.unit.conftest import Orch


def plan_of(run_id: str, attempt: int = 0) -> Plan:
    return lan.plan(identity=RunIdentity(run_id=run_id, user="ana", started_at="2026", attempt=attempt))


def recall(workspaces: dict[str, Path], run_id: str) -> Plan:
    """Asks nodes that are this computer, each with a workspace of its own."""
    specs = {name: lan.spec(name, workspace=str(folder)) for name, folder in workspaces.items()}
    return asked([LocalNode(name) for name in workspaces], specs, "orch", run_id).plan


def leave(workspace: Path, plan: Plan) -> None:
    folder = workspace / "orch/runs" / plan.run_id
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(to_json(plan))


def test_from_the_record_without_asking_anybody() -> None:
    RunRecord("red-1").save_plan(plan_of("red-1"))
    RunRecord("red-12").save_plan(plan_of("red-12"))
    RunRecord("blue-1").save_plan(plan_of("blue-1"))
    assert asked([], {}, "orch", "red-1").plan.run_id == "red-1"
    assert asked([], {}, "orch", "b").plan.run_id == "blue-1"
    assert asked([], {}, "orch", "red").plan.run_id == "red-12"  # the newer one


def test_a_plan_of_an_older_revision_is_resumed(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture was written by revision 7eff98a; all that the run had then, it has again."""
    monkeypatch.setenv("HF_TOKEN", "of-this-computer")
    text = (Path(__file__).parents[1] / "fixtures/plans/7eff98a.json").read_text()
    record = RunRecord("0102-1504-ab12")
    record.save_plan(lan.plan())
    (record.folder / "plan-0.json").write_text(text)
    ran = orch("resume", record.run_id, "--dry-run", "--json", on=lan.lan("alpha", "beta", "gamma"))
    assert ran.code == 0, ran.err
    before, after = {"hang_timeout_s": 0, "sync_outputs": "results", **json.loads(text)}, json.loads(ran.out)["data"]
    saved = ("run_id", "command", "mounts", "secrets", "profile", *NUMBERS)
    assert {name: after[name] for name in saved} == {name: before[name] for name in saved}
    assert (after["attempt"], after["environment"]["GREETING"]) == (1, "hello")


def test_from_the_nodes_the_newest_attempt(tmp_path: Path) -> None:
    places = {"alpha": tmp_path / "a b", "beta": tmp_path / "b"}
    leave(places["alpha"], plan_of("red-1"))
    leave(places["beta"], plan_of("red-1", attempt=2))
    assert recall(places, "red-1").attempt == 2
    assert recall(places, "re").attempt == 2


def test_of_several_runs_on_one_node_the_newest_is_meant(tmp_path: Path) -> None:
    for written, run_id in enumerate(("red-12", "red-1", "red-7"), start=1):
        leave(tmp_path, plan_of(run_id))
        os.utime(tmp_path / "orch/runs" / run_id / "plan.json", (written, 4 - written))
    assert recall({"alpha": tmp_path}, "red-1").run_id == "red-1"
    assert recall({"alpha": tmp_path}, "red").run_id == "red-12"


def test_of_runs_on_two_nodes_the_newest_is_meant(tmp_path: Path) -> None:
    places = {"alpha": tmp_path / "a", "beta": tmp_path / "b"}
    leave(places["alpha"], replace(plan_of("red-1"), started_at="2026-01-03T00:00:00+00:00"))
    leave(places["beta"], replace(plan_of("red-2"), started_at="2026-01-02T00:00:00+00:00"))
    assert recall(places, "red").run_id == "red-1"


@pytest.mark.parametrize("wanted", ["red", "*", "$(id)", "-e"])
def test_nowhere(tmp_path: Path, wanted: str) -> None:
    leave(tmp_path, plan_of("blue"))
    with pytest.raises(ConfigError, match=r"no plan of run .* on this computer or on a node") as caught:
        recall({"alpha": tmp_path}, wanted)
    assert caught.value.hint == "orch runs"


def test_a_node_that_did_not_answer_is_reported() -> None:
    silent = FakeNode("alpha", answers={("sh", "*"): NodeUnreachableError("no answer in 5 s", node="alpha")})
    with pytest.raises(PreflightError, match="alpha did not answer") as caught:
        asked([silent], {"alpha": NodeSpec(name="alpha", address="10.0.0.1")}, "orch", "red")
    assert caught.value.hint == "orch doctor"


def test_a_broken_plan_is_named(tmp_path: Path) -> None:
    leave(tmp_path, plan_of("red"))
    (tmp_path / "orch/runs/red/plan.json").write_text('{"run_id": 7}')
    with pytest.raises(ConfigError, match=r"plan.json on alpha is not a plan of this version") as caught:
        recall({"alpha": tmp_path}, "red")
    assert any(problem.startswith("run_id: ") for problem in caught.value.problems)


def test_a_plan_says_where_it_comes_from(tmp_path: Path) -> None:
    RunRecord("red-1").save_plan(plan_of("red-1"))
    leave(tmp_path, plan_of("red-1", attempt=1))
    nodes, specs = [LocalNode("alpha")], {"alpha": lan.spec("alpha", workspace=str(tmp_path))}
    own = asked(nodes, specs, "orch", "red-1", attempt=0)
    assert (own.plan, own.node) == (plan_of("red-1"), "")
    other = asked(nodes, specs, "orch", "red-1", attempt=1)
    assert (other.plan, other.node, other.own) == (plan_of("red-1", attempt=1), "alpha", plan_of("red-1"))


def test_an_attempt_that_this_computer_began_to_launch_is_its_own() -> None:
    RunRecord("red-1").save_plan(plan_of("red-1"))
    RunRecord("red-1").save_intent(plan_of("red-1", attempt=1))
    for attempt in (0, 1):
        own = asked([], {}, "orch", "red-1", attempt=attempt)
        assert (own.plan.attempt, own.node) == (attempt, "")
    RunRecord("red-1").forget_intent(1)
    assert asked([], {}, "orch", "red-1").plan.attempt == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"\0" * 4096, b'{"run_id": 7}'])
def test_a_record_that_cannot_be_read_is_as_if_it_were_lost(tmp_path: Path, content: bytes) -> None:
    record = RunRecord("red-1")
    record.save_plan(plan_of("red-1"))
    (record.folder / "plan-0.json").write_bytes(content)
    leave(tmp_path, plan_of("red-1"))
    specs = {"alpha": lan.spec("alpha", workspace=str(tmp_path))}
    found = asked([LocalNode("alpha")], specs, "orch", "red")
    assert (found.plan, found.node, found.own) == (plan_of("red-1"), "alpha", None)
    assert str(record.folder / "plan-0.json") in found.unreadable


def test_a_broken_plan_of_one_node_hides_no_other(tmp_path: Path) -> None:
    places = {"alpha": tmp_path / "a", "beta": tmp_path / "b"}
    for folder in places.values():
        leave(folder, plan_of("red"))
    (places["alpha"] / "orch/runs/red/plan.json").write_text('{"run_id": 7}')
    assert recall(places, "red") == plan_of("red")


def test_a_node_that_names_other_runs_makes_nothing_ambiguous(tmp_path: Path) -> None:
    leave(tmp_path, plan_of("red"))
    specs = {name: lan.spec(name, workspace=str(tmp_path)) for name in ("alpha", "beta", "gamma")}
    several = FakeNode("beta", answers={("sh", "*"): (SEVERAL, "blue-1\nblue-2\n", "")})
    other = FakeNode("gamma", answers={("sh", "*"): (0, to_json(plan_of("blue-1", attempt=9)), "")})
    assert asked([LocalNode("alpha"), several, other], specs, "orch", "re").plan == plan_of("red")
