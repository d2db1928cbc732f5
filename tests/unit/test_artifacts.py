"""Code and data that a run was launched with, on nodes that never had them: by the very scripts that nodes run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.run_folder import AGENTS_TOKEN
from orchestrator.fleet.runs.artifacts import ProjectDir, artifacts_of, code_list
from orchestrator.fleet.runs.bring_artifacts import fetch
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.launch import launch
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import Progress
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import CommandFailedError, ConfigError, NodeUnreachableError, PreflightError
from orchestrator.specs.plan import Plan
from orchestrator.specs.request import LaunchRequest
from tests import lan
from tests.shelves import Shelves


class Streaming(FakeNode):
    """Archives come in many pieces, as over a connection."""

    def stream(self, argv: object, **how: object) -> Iterator[bytes]:
        (whole,) = super().stream(argv, **how)  # type: ignore[arg-type]  # as it was called
        yield from (whole[at : at + 700] for at in range(0, len(whole), 700))


class Place(Shelves):
    """Three machines and a controller with code and data; alpha and beta were launched on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "machines")
        self.nodes = {
            name: Streaming(name, root=Path("/"), address=lan.address_of(name), programs=self.play)
            for name in self.names
        }
        self.code, self.data = folder / "mine", folder / "Data"
        (self.code / "empty").mkdir(parents=True)
        (self.code / "deep/er").mkdir(parents=True)
        (self.code / "train.py").write_text("print(1)\n")
        (self.code / "deep/er/-odd\nname.py").write_text("x = 1\n")
        (self.code / "link.py").symlink_to("train.py")
        self.data.mkdir()
        (self.data / "tokens.bin").write_bytes(bytes(range(256)) * 40)
        (self.data / "manifest.json").write_text("{}")
        self.fresh = {folder_digest(folder): folder for folder in (self.code, self.data)}
        self.notes: list[tuple[str, str]] = []
        self.copied: dict[str, int] = {}
        """Bytes, by node."""
        self.first = self.planned("alpha", "beta")
        launch(self.nodes, self.first, fresh=self.fresh)
        for node in self.all:
            node.engine.made.clear()

    def planned(self, *names: str, attempt: int = 0) -> Plan:
        request = LaunchRequest(
            project="orch",
            nodes=tuple(one for one in self.specs if one.name in names),
            command=("python", "train.py"),
            own_code=True,
            code_digest=folder_digest(self.code),
            code_origin=str(self.code),
            data=lan.data(folder_digest(self.data), self.data),
        )
        identity = replace(lan.IDENTITY, attempt=attempt, claim=f"{attempt:032x}")
        return plan_launch(request, {name: lan.facts(name) for name in names}, identity)

    def start_next_attempt(self, plan: Plan, *elsewhere: str) -> None:
        def notify(node: str, progress: Progress) -> None:
            if progress.done != progress.total:
                self.copied[node] = progress.done
            else:
                self.notes.append((node, progress.text))

        launch(self.nodes, plan, elsewhere={name: self.places[name] for name in elsewhere}, notify=notify)

    def code_of(self, name: str) -> Path:
        return self.root(name) / "runs" / self.first.run_id / "code"

    def data_of(self, name: str) -> Path:
        return self.root(name) / "data" / self.first.data[0].digest


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_node_that_comes_later_gets_what_was_launched(here: Place) -> None:
    (here.code_of("alpha") / "written-by-the-run.txt").write_text("loss 3")
    here.start_next_attempt(here.planned("alpha", "beta", "gamma", attempt=1))
    assert folder_digest(here.code_of("gamma")) == here.first.code_digest
    assert folder_digest(here.data_of("gamma")) == here.first.data[0].digest
    assert ("gamma", "data copied") in here.notes
    assert not [step for step in here.notes if step[0] != "gamma" and step[1] != "container started"]
    assert (here.code_of("alpha") / "written-by-the-run.txt").exists()


def test_from_a_node_where_the_controllers_folder_has_changed(here: Place) -> None:
    later = here.planned("beta", "gamma", attempt=1)
    (here.code_of("beta") / "written-by-the-run.txt").write_text("loss 3")
    (here.code / "train.py").write_text("print(2)\n")
    shutil.rmtree(here.data)
    here.start_next_attempt(later)
    assert folder_digest(here.code_of("gamma")) == here.first.code_digest
    assert (here.code_of("gamma") / "train.py").read_text() == "print(1)\n"
    assert (here.code_of("gamma") / "empty").is_dir()
    assert (here.code_of("gamma") / "link.py").is_symlink()
    assert folder_digest(here.data_of("gamma")) == here.first.data[0].digest
    assert here.notes[:2] == [("gamma", "bringing the run's code from beta"), ("gamma", "code copied")]
    assert ("gamma", "bringing the run's data from beta") in here.notes
    assert here.copied["gamma"] > 0
    folder = here.code_of("gamma").parent
    made = {"attempts", "code", "plan.json", AGENTS_TOKEN, code_list(later.code_digest)}
    assert {path.name for path in folder.iterdir()} == made


def test_from_a_node_that_takes_no_part(here: Place) -> None:
    later = here.planned("gamma", attempt=1)
    shutil.rmtree(here.code)
    shutil.rmtree(here.data)
    here.nodes["alpha"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="alpha")
    here.start_next_attempt(later, "alpha", "beta")
    assert folder_digest(here.code_of("gamma")) == here.first.code_digest
    assert folder_digest(here.data_of("gamma")) == here.first.data[0].digest


def test_what_a_run_has_changed_is_not_handed_on(here: Place) -> None:
    later = here.planned("alpha", "beta", "gamma", attempt=1)
    shutil.rmtree(here.code)
    (here.code_of("alpha") / "train.py").write_text("print('not what was launched')\n")
    here.start_next_attempt(later)
    assert (here.code_of("gamma") / "train.py").read_text() == "print(1)\n"
    (here.code_of("beta") / "train.py").unlink()
    shutil.rmtree(here.code_of("gamma").parent)
    for node in here.all:
        node.engine.made.clear()
    with pytest.raises(PreflightError, match=r"beta: .*/code has changed since run 0102-1504-ab12 was launched"):
        here.start_next_attempt(later)
    assert not list(here.code_of("gamma").iterdir())
    assert [node.engine.made for node in here.all] == [{}, {}, {}]


@pytest.mark.parametrize(("gone", "state"), [(True, "is not on this computer"), (False, "holds something else now")])
def test_nowhere_to_be_had(here: Place, gone: bool, state: str) -> None:
    later = here.planned("gamma", attempt=1)
    if gone:
        shutil.rmtree(here.code)
    else:
        (here.code / "train.py").write_text("print(2)\n")
    with pytest.raises(PreflightError) as raised:
        here.start_next_attempt(later)
    assert str(raised.value) == (
        f"gamma lacks the code that run {later.run_id} was launched with: {here.code} {state}, "
        "and no node that answers has it"
    )
    assert f"orch resume {later.run_id} --workdir" in raised.value.hint
    assert here.nodes["gamma"].engine.made == {}


def test_code_that_is_brought_again_goes_over_what_is_there(here: Place) -> None:
    (here.code_of("alpha") / "written-by-the-run.txt").write_text("loss 3")
    (here.code / "train.py").write_text("print(2)\n")
    second = here.planned("alpha", attempt=1)
    launch(here.nodes, second, fresh={second.code_digest: here.code})
    assert (here.code_of("alpha") / "train.py").read_text() == "print(2)\n"
    assert (here.code_of("alpha") / "written-by-the-run.txt").exists()
    lists = [path.name for path in here.code_of("alpha").parent.glob("code-*.list")]
    assert lists == [code_list(second.code_digest)]


# ── Data of a script ──────────────────────────────────────────────────────────────────────────────────────────────────


def scripted(here: Place, *names: str, attempt: int = 0) -> Plan:
    """A run whose script finds its data in a folder of the code and beside it."""
    data = lan.data(here.first.data[0].digest, here.data, places=("deep/set", "../beside"))
    request = LaunchRequest(
        project="orch", nodes=tuple(one for one in here.specs if one.name in names), command=here.first.command,
        own_code=True, code_digest=here.first.code_digest, code_origin=str(here.code), data=data,
    )  # fmt: skip
    identity = replace(lan.IDENTITY, run_id="data-1", attempt=attempt, claim=f"{attempt:032x}")
    return plan_launch(request, {name: lan.facts(name) for name in names}, identity)


def test_links_show_the_data_and_travel_with_no_code(here: Place, tmp_path: Path) -> None:
    plan = scripted(here, "alpha")
    here.start_next_attempt(plan)
    run = here.root("alpha") / "runs/data-1"
    for place in (run / "code/deep/set", run / "beside"):
        assert (place / "manifest.json").read_text() == "{}"
    shutil.rmtree(here.code)
    for node in here.all:
        node.engine.made.clear()
    here.start_next_attempt(scripted(here, "alpha", "beta", attempt=1))
    copied = here.root("beta") / "runs/data-1"
    assert (copied / "code/train.py").is_file()
    assert (copied / "code/deep/set").readlink() == Path("../../../../data") / plan.data[0].digest
    code = next(one for one in artifacts_of(plan) if one.is_code)
    fetch(code, ProjectDir(node=here.nodes["alpha"], folder=str(here.root("alpha"))), tmp_path / "fetched")
    assert not (tmp_path / "fetched/deep/set").exists()


def test_files_that_a_run_wrote_are_not_hidden_by_data(here: Place) -> None:
    plan = scripted(here, "alpha", attempt=1)
    written = here.root("alpha") / "runs/data-1/code/deep/set/mine.txt"
    written.parent.mkdir(parents=True)
    written.write_text("mine")
    with pytest.raises(CommandFailedError, match="deep/set holds files that the run has written"):
        here.start_next_attempt(plan)
    assert written.read_text() == "mine"
    assert not here.nodes["alpha"].engine.made


def test_data_that_changes_while_it_is_copied_ends_the_launch_and_leaves_nothing(here: Place) -> None:
    plan = scripted(here, "gamma")
    node = here.nodes["gamma"]

    def put(source: Path, target: str, **how: object) -> None:
        FakeNode.put(node, source, target, **how)  # type: ignore[arg-type]  # as it was called
        if "data/" in target:
            (source / "tokens.bin").write_bytes(b"another")

    node.put = put  # type: ignore[method-assign]  # a writer at this very moment
    with pytest.raises(ConfigError, match=r"Data has changed while it was copied"):
        launch(here.nodes, plan, fresh={plan.data[0].digest: here.data})
    assert list((here.root("gamma") / "data").iterdir()) == []
    assert list((here.root("gamma") / "runs").iterdir()) == []
    assert not node.engine.made
