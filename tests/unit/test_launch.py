"""Carrying out a plan: all containers start, or none is left anywhere."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.fleet.runs import launch as launching
from orchestrator.fleet.runs.find_runs import RunningContainer
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.launch import _PREPARE, ended_name, launch
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import CommandFailedError, ConflictError, EngineError, OrchError
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.run import ContainerFacts
from orchestrator.store.run_record import RunRecord, recorded_runs
from tests import lan
from tests.shelves import Shelves

FIVE = lan.NAMES


def quiet_lan() -> lan.Lan:
    """Five machines whose containers run until they are asked to stop."""
    return lan.lan(*FIVE, ends_with=None)


def plan_of(run_id: str, *, user: str = "ana") -> Plan:
    return lan.plan(FIVE, RunIdentity(run_id=run_id, user=user, started_at="2026-01-02T15:04:05+00:00"))


def test_every_container_runs_and_the_plan_is_saved() -> None:
    here, plan, steps = quiet_lan(), plan_of("first"), list[tuple[str, str]]()
    containers = launch(here.nodes, plan, notify=lambda node, step: steps.append((node, step.text)))

    assert [(one.node.name, one.node_rank) for one in containers] == list(zip(FIVE, range(5), strict=True))
    for container in containers:
        facts = container.node.engine.container(container.id)
        assert facts is not None
        assert (facts.status, facts.labels["orch.run_id"]) == ("running", "first")
    assert steps == [(name, "container started") for name in FIVE]
    assert RunRecord("first").plan() == plan


def test_folders_and_plan_are_made_before_any_container() -> None:
    here, plan = quiet_lan(), plan_of("first")
    here.nodes["gamma"].answers[("sh", "-c", "*")] = (1, "", "mkdir: cannot create directory: Permission denied")
    with pytest.raises(
        CommandFailedError, match=r"gamma: making /home/ana/orch/orch failed.*Permission denied"
    ) as caught:
        launch(here.nodes, plan)
    assert "workspace" in caught.value.hint
    assert here.containers == {}


def test_a_busy_node_refuses_before_anything_is_copied() -> None:
    here = quiet_lan()
    launch(here.nodes, plan_of("first", user="bea"))
    for node in here.nodes.values():
        node.calls.clear()
    with pytest.raises(ConflictError, match="run first by bea holds this node since"):
        launch(here.nodes, plan_of("second"))
    assert {name: node.calls for name, node in here.nodes.items() if node.calls} == {}


@dataclass
class Reserving(lan.Actor):
    """An engine that has promised a name to another launch, whose container it shows only some looks later."""

    looks: int = 0
    comes: ContainerSpec | None = None

    def create(self, spec: ContainerSpec) -> str:
        if self.looks:
            raise ConflictError(
                'Conflict. The name "/orch-run" is already in use by container "d96c63"', node=self.node
            )
        return super().create(spec)

    def container(self, container: str) -> ContainerFacts | None:
        if self.looks and self.calls and self.calls[-1][0] == "container":
            self.looks -= 1
            if not self.looks and self.comes:
                super().create(self.comes)
        return super().container(container)


@pytest.mark.parametrize("comes", [True, False], ids=["it shows up", "it never does"])
def test_of_two_launches_at_the_same_moment_the_loser_names_the_winner(comes: bool) -> None:
    here, rests = quiet_lan(), list[float]()
    plain = here.nodes["alpha"].engine
    other = plan_of("first", user="bea").nodes[0].container
    here.nodes["alpha"].engine = Reserving("alpha", held=plain.held, description=plain.description, ends_with=None,
                                           looks=3 if comes else 99, comes=other if comes else None)  # fmt: skip
    with pytest.raises(ConflictError) as caught:
        launch(here.nodes, plan_of("second"), rest=rests.append)
    assert "Conflict." not in str(caught.value)
    if comes:
        assert "run first by bea holds this node since" in str(caught.value)
        assert "orch stop first" in caught.value.hint
    else:
        assert "another launch is taking this node" in str(caught.value)
        assert "orch runs" in caught.value.hint
    assert 0 < sum(rests) < 10
    assert set(here.containers) <= {"alpha"}


def test_folder_and_run_id_reach_the_shell_as_arguments() -> None:
    here = quiet_lan()
    launch(here.nodes, plan_of("first"))
    claim, call = here.nodes["beta"].calls[:2]
    assert call[:2] == ("sh", "-c")
    assert claim[3:7] == ("sh", "/home/ana/orch/orch", "first", "0")
    assert call[3:] == ("sh", "/home/ana/orch/orch", "first", "")
    assert "/home/ana" not in call[2]


def test_code_and_data_are_copied(tmp_path: Path) -> None:
    code, data = tmp_path / "mine", tmp_path / "Data"
    code.mkdir()
    data.mkdir()
    (code / "train.py").write_text("print(1)")
    (data / "manifest.json").write_text("{}")
    here, steps = Shelves(tmp_path / "machines", names=("alpha",)), list[tuple[str, str]]()
    here.nodes["alpha"].root = Path("/")

    digest = folder_digest(data)
    asked = replace(lan.request(("alpha",), data=lan.data(digest)), nodes=here.specs, own_code=True)
    plan = plan_launch(replace(asked, code_digest="fedcba9876543210"), {"alpha": lan.facts("alpha")}, lan.IDENTITY)
    fresh = {digest: data, plan.code_digest: code}
    launch(here.nodes, plan, fresh=fresh, notify=lambda node, step: steps.append((node, step.text)))

    folder = here.root("alpha")
    assert (folder / "runs" / plan.run_id / "code/train.py").read_text() == "print(1)"
    assert {path.name for path in (folder / "data").iterdir()} == {digest, ".sums"}
    assert (folder / f"data/{digest}/manifest.json").stat().st_mode & 0o222 == 0
    assert ("alpha", "data copied") in steps


@pytest.mark.parametrize("method", ["create", "start"])
@pytest.mark.parametrize("broken", FIVE)
def test_a_node_that_fails_leaves_nothing_anywhere(method: str, broken: str) -> None:
    here = quiet_lan()
    here.nodes[broken].engine.failures[method] = EngineError("no space left on device", node=broken)
    with pytest.raises(EngineError, match=f"{broken}: no space left"):
        launch(here.nodes, plan_of("first"))
    assert here.containers == {}
    assert recorded_runs() == []


def test_all_that_failed_are_named() -> None:
    here = quiet_lan()
    for name in ("beta", "delta"):
        here.nodes[name].engine.failures["start"] = EngineError("refused", node=name)
    with pytest.raises(EngineError, match="beta: refused") as caught:
        launch(here.nodes, plan_of("first"))
    assert caught.value.hint == "(also: delta)"


@dataclass
class Interrupting(lan.Actor):
    """Engine that receives Ctrl-C while its container starts; the start continues until it is removed."""

    def start(self, container: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        with self.changed:
            assert self.changed.wait_for(lambda: container not in self.made, timeout=30)


def test_an_interrupt_leaves_nothing_either() -> None:
    here = quiet_lan()
    here.nodes["gamma"].engine = Interrupting("gamma")
    with pytest.raises(KeyboardInterrupt):
        launch(here.nodes, plan_of("first"))
    assert here.containers == {}


def test_a_running_run_keeps_its_node() -> None:
    here = quiet_lan()
    launch(here.nodes, plan_of("first", user="bea"))
    before = here.containers

    with pytest.raises(ConflictError) as caught:
        launch(here.nodes, plan_of("second"))

    assert str(caught.value) == "alpha: run first by bea holds this node since 2026-01-02T15:04:05+00:00"
    assert caught.value.hint == "wait for it, or: orch stop first"
    assert caught.value.exit_code == 6
    assert here.containers == before
    assert [record.run_id for record in recorded_runs()] == ["first"]


def test_a_run_that_holds_one_node_only_is_found_there() -> None:
    here = quiet_lan()
    alone = lan.plan(("delta",), RunIdentity(run_id="alone", user="bea", started_at="then"))
    launch(here.nodes, alone)
    with pytest.raises(ConflictError, match="delta: run alone by bea holds this node since then"):
        launch(here.nodes, plan_of("second"))
    assert here.containers == {"delta": ["orch-run"]}


def test_an_ended_run_steps_aside_with_its_logs() -> None:
    here = quiet_lan()
    for container in launch(here.nodes, plan_of("first")):
        here.nodes[container.node.name].engine.finish(container.id, 1)

    containers = launch(here.nodes, plan_of("second"))

    assert len(containers) == 5
    for name in FIVE:
        aside, now = sorted(here.containers[name], key=len, reverse=True)
        assert aside.startswith("orch-run-first.0-")
        assert now == "orch-run"


def test_names_of_ended_runs_differ() -> None:
    facts = ContainerFacts(id="c1", name="orch-run", image="i", labels={"orch.run_id": "r"}, status="exited")
    assert ended_name(facts) == "orch-run-r.0-c1"
    assert len({ended_name(replace(facts, id=id)) for id in ("c1", "c2", "c3")}) == 3


@dataclass
class Vanishing(lan.Actor):
    """Its name is taken at the first try, and free when one looks."""

    def create(self, spec: ContainerSpec) -> str:
        if ("create", spec.name) not in self.calls:
            self.calls.append(("create", spec.name))
            raise ConflictError(f"the name {spec.name} is taken", node=self.node)
        return super().create(spec)


def test_a_holder_that_goes_away_in_between_is_no_conflict() -> None:
    here = lan.lan("alpha")
    here.nodes["alpha"].engine = Vanishing("alpha")
    assert len(launch(here.nodes, lan.plan(("alpha",)))) == 1


@pytest.mark.parametrize("ended_before", [False, True])
def test_of_two_launches_at_once_exactly_one_wins(ended_before: bool) -> None:
    here = quiet_lan()
    if ended_before:
        for container in launch(here.nodes, plan_of("old")):
            here.nodes[container.node.name].engine.finish(container.id, 0)

    def attempt(run_id: str) -> tuple[RunningContainer, ...] | OrchError:
        try:
            return launch(here.nodes, plan_of(run_id))
        except OrchError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(("one", "two"), pool.map(attempt, ("one", "two")), strict=True))

    (winner,) = [run_id for run_id, result in results.items() if isinstance(result, tuple)]
    (refused,) = [result for result in results.values() if not isinstance(result, tuple)]
    assert isinstance(refused, ConflictError)
    for name in FIVE:
        runs = [facts.labels["orch.run_id"] for _, facts in here.nodes[name].engine.made.values()]
        assert runs == ["old"] * ended_before + [winner]


@pytest.mark.parametrize("packing", ["", "gzip"])
def test_a_large_plan_is_sent_compressed_and_saved_as_it_is(packing: str, tmp_path: Path) -> None:
    text = to_json(plan_of("first")).encode()
    words = [str(tmp_path), "first", packing]
    sent = gzip.compress(text) if packing else text
    LocalNode().run(["sh", "-c", _PREPARE, "sh", *words], stdin=sent).check("preparing")
    assert (tmp_path / "runs/first/plan.json").read_bytes() == text


@pytest.mark.parametrize("least", [1, 1 << 30])
def test_a_plan_is_compressed_from_its_size_on(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "COMPRESSED_FROM", least)
    sent: list[tuple[str, bytes]] = []

    def hear(argv: Sequence[str], stdin: bytes, _timeout_s: float) -> tuple[int, str, str]:
        if _PREPARE in argv:
            sent.append((argv[-1], stdin))
        return 0, "", ""

    here, plan = quiet_lan(), plan_of("first")
    for node in here.nodes.values():
        node.answers.pop(("sh", "-c", "*"))
        node.programs = hear
    launch(here.nodes, plan)
    assert {word for word, _ in sent} == {"gzip" if least == 1 else ""}
    assert {gzip.decompress(text) if least == 1 else text for _, text in sent} == {to_json(plan).encode()}
