"""`orch checkpoints` on machines in memory whose checkpoints are real files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.checkpoint import CheckpointFile
from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import Answer
from orchestrator.plan.checkpoints import to_prune
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.shelves import RUN, Shelves, flip, mark_best, steps_in, write_checkpoint
from tests.unit.conftest import Ran

Orch = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path) -> Shelves:
    """alpha leads, beta has a copy of its newest."""
    shelves = Shelves(tmp_path / "machines")
    for step, age_s in ((20, 9000), (40, 6000), (60, 3000), (80, 60)):
        write_checkpoint(shelves.root("alpha"), step, age_s=age_s)
    write_checkpoint(shelves.root("beta"), 80, age_s=30)
    return shelves


@pytest.fixture
def orch(here: Shelves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orch:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    nodes = [f"  {spec.name}: {{address: {spec.address}, workspace: {spec.workspace}}}" for spec in here.specs]
    Path("inventory.yaml").write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))

    def run(*argv: str) -> Ran:
        with connecting_by(here.connect):
            code = main(["checkpoints", *argv])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return Ran(code, output.out, output.err)

    return run


def rows(ran: Ran) -> list[tuple[str, int, str, int]]:
    assert ran.code == 0, ran.err
    return [(one["node"], one["step"], one["problem"], one["copies"]) for one in json_data(ran.out)["checkpoints"]]


def test_ls_shows_the_newest_first_and_how_many_copies(orch: Orch, here: Shelves) -> None:
    mark_best(here.root("alpha"), 40)
    assert rows(orch("ls", "--json")) == [
        ("alpha", 80, "", 2), ("beta", 80, "", 2), ("alpha", 60, "", 1), ("alpha", 40, "", 1), ("alpha", 20, "", 1),
    ]  # fmt: skip
    lines = orch("ls", RUN[:6]).out.splitlines()
    assert lines[0].split() == ["run", "node", "state", "step", "size", "age", "copies"]
    assert lines[4].split() == [RUN, "alpha", "complete,", "best", "40", "3.3", "kB", "100", "min", "1"]


def test_what_shares_a_step_and_differs_is_no_copy(orch: Orch, here: Shelves) -> None:
    write_checkpoint(here.root("gamma"), 80, size=600)
    assert sorted(rows(orch("ls", "--json")))[-2:] == [("beta", 80, "", 2), ("gamma", 80, "", 1)]


def test_ls_without_any(orch: Orch, tmp_path: Path, here: Shelves) -> None:
    for name in here.names:
        here.nodes[name].answers["sh", "*"] = (0, "now=1\n", "")
    ran = orch("ls")
    assert (ran.code, ran.out) == (0, "")
    assert "no checkpoints yet" in ran.err
    assert orch("pull").code == 3
    assert (tmp_path / "user" / "runs").exists() is False


def test_of_runs_that_begin_so_the_one_with_the_newest_checkpoint_is_meant(orch: Orch, here: Shelves) -> None:
    write_checkpoint(here.root("gamma"), 5, run_id=f"{RUN[:6]}-other", age_s=9)
    ran = orch("verify", RUN[:6])
    assert (ran.code, f"note: {RUN[:6]}-other, the newer of 2\n" in ran.err) == (0, True), ran.err
    assert "✓ run 0102-1504-ab12: 5 checkpoints" in orch("verify", RUN).err
    assert "other: 1 checkpoint, every file" in orch("verify").err  # the youngest
    assert orch("verify", "nothing").code == 3


def test_verify_finds_what_ls_does_not(orch: Orch, here: Shelves) -> None:
    flip(here.root("beta") / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    assert all(problem == "" for _, _, problem, _ in rows(orch("ls", "--json")))
    ran = orch("verify")
    assert ran.code == 1
    assert "✗ beta: " in ran.err
    assert "state.pt has changed since it was written (sha256 differs)" in ran.err
    assert "1 of 5 checkpoints are damaged" in ran.err
    assert orch("ls", "--verify").code == 1
    assert orch("verify", "--step", "60").code == 0
    assert orch("verify", "--step", "61").code == 3


def test_a_node_that_does_not_answer_is_reported(orch: Orch, here: Shelves) -> None:
    here.nodes["gamma"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="gamma")
    ran = orch("verify")
    assert (ran.code, "note: gamma: no answer in 5 s" in ran.err) == (5, True)
    for name in here.names:
        here.nodes[name].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node=name)
    assert orch("ls").code == 4


def test_pull_brings_the_newest_and_brings_it_once(orch: Orch, tmp_path: Path) -> None:
    ran = orch("pull", "--json", "--to", "kept")
    folder = tmp_path / "user" / "kept" / "runs" / RUN / "checkpoints" / "step-00000080"
    assert json_data(ran.out) == {
        "run_id": RUN, "step": 80, "from": "alpha", "folder": str(folder), "moved": True,
    }  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {"state.pt", "vocabulary.json", "manifest.json"}
    assert json_data(orch("pull", "--json", "--to", "kept").out)["moved"] is False
    flip(folder / "state.pt")
    assert json_data(orch("pull", "--json", "--to", "kept").out)["moved"] is True
    assert "step 40 of run" in orch("pull", "--step", "40").err
    assert steps_in(tmp_path / "user") == [40]


def test_pull_takes_another_copy_then_an_older_checkpoint(orch: Orch, here: Shelves, tmp_path: Path) -> None:
    flip(here.root("alpha") / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    ran = orch("pull", "--json")
    assert "note: alpha: " in ran.err
    assert (json_data(ran.out)["from"], json_data(ran.out)["step"]) == ("beta", 80)
    flip(tmp_path / "user" / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    flip(here.root("beta") / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    assert json_data(orch("pull", "--json").out)["step"] == 60
    assert orch("pull", "--step", "80").code == 1


def test_push_brings_back_what_was_pulled(orch: Orch, here: Shelves, tmp_path: Path) -> None:
    assert orch("pull", "--to", "kept").code == 0
    for name in here.names:
        shutil.rmtree(here.root(name) / "runs", ignore_errors=True)
    nowhere = orch("push", "--from", "kept")
    assert (nowhere.code, "name a node: --to NODE" in nowhere.err) == (2, True)
    RunRecord(RUN).save_plan(here.plan)
    ran = orch("push", RUN[:6], "--from", "kept", "--json")
    assert json_data(ran.out) == {"run_id": RUN, "step": 80, "to": here.plan.master, "moved": True, "newer": None}
    assert steps_in(here.root("alpha")) == [80]
    again = orch("push", "--from", "kept")
    assert "already there, every file verified" in again.err
    assert f"→ orch resume {RUN}" in again.err
    flip(here.root("alpha") / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    assert json_data(orch("push", "--from", "kept", "--json").out)["moved"] is True
    assert orch("verify").code == 0
    assert json_data(orch("push", "--from", "kept", "--to", "gamma", "--json").out)["to"] == "gamma"
    assert steps_in(here.root("gamma")) == [80]


def test_push_takes_only_what_is_sound(orch: Orch, here: Shelves, tmp_path: Path) -> None:
    none = orch("push", "--from", "kept", "--to", "gamma")
    assert (none.code, "found under runs in this folder" in none.err) == (3, True)
    assert orch("pull", "--to", "kept").code == 0
    assert orch("pull", "--to", "kept", "--step", "60").code == 0
    saved = tmp_path / "user" / "kept" / "runs" / RUN / "checkpoints"
    flip(saved / "step-00000080" / "state.pt")
    older = orch("push", "--from", "kept", "--to", "gamma", "--json")
    assert (json_data(older.out)["step"], json_data(older.out)["newer"]) == (60, 80)
    assert "state.pt has changed since it was written" in older.err
    assert "alpha holds step 80: orch resume continues from that one" in older.err
    damaged = orch("push", "--from", "kept", "--to", "gamma", "--step", "80")
    assert (damaged.code, "state.pt has changed since it was written (sha256 differs)" in damaged.err) == (1, True)
    assert steps_in(here.root("gamma")) == [60]
    unknown = orch("push", "--from", "kept", "--to", "stranger")
    assert (unknown.code, "--to one of alpha, beta, gamma" in unknown.err) == (3, True)


def test_push_puts_nothing_in_place_of_what_is_sound_nor_beside_a_run_that_continues(orch: Orch, here: Shelves) -> None:
    assert orch("pull", "--to", "kept").code == 0
    other = write_checkpoint(here.root("gamma"), 80, size=600)
    before = (other / "state.pt").read_bytes()
    rival = orch("push", "--from", "kept", "--to", "gamma")
    assert (rival.code, "gamma: the node has a different intact checkpoint of step 80" in rival.err) == (6, True)
    assert (other / "state.pt").read_bytes() == before
    flip(other / "state.pt")
    assert orch("push", "--from", "kept", "--to", "gamma").code == 0
    here.nodes["beta"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="beta")
    silent = orch("push", "--from", "kept", "--to", "beta")
    assert (silent.code, "error: beta: no answer in 5 s" in silent.err) == (4, True)
    part = here.plan.nodes[0]
    here.nodes["alpha"].engine.start(here.nodes["alpha"].engine.create(part.container))
    running = orch("push", "--from", "kept", "--to", "gamma")
    assert (running.code, f"run {RUN} still runs on alpha" in running.err) == (6, True)


def test_prune_shows_asks_and_keeps_what_must_stay(orch: Orch, here: Shelves) -> None:
    mark_best(here.root("alpha"), 20)
    refused = orch("prune", RUN, "--keep", "1")
    assert (refused.code, "add --yes to agree" in refused.err) == (2, True)
    assert steps_in(here.root("alpha")) == [20, 40, 60, 80]
    assert "2 checkpoints removed" in orch("prune", RUN, "--keep", "1", "--yes").err
    assert (steps_in(here.root("alpha")), steps_in(here.root("beta"))) == ([20, 80], [80])
    again = orch("prune", RUN, "--keep", "1", "--yes", "--json")
    assert json_data(again.out) == {"run_id": RUN, "removed": []}


def test_prune_only_what_is_old(orch: Orch, here: Shelves) -> None:
    assert orch("prune", RUN, "--keep", "1", "--older-than", "2", "--yes").code == 0
    assert steps_in(here.root("alpha")) == [40, 60, 80]


def test_prune_never_takes_the_newest_sound_one(orch: Orch, here: Shelves) -> None:
    for name, step in (("alpha", 80), ("beta", 80), ("alpha", 60)):
        flip(here.root(name) / "runs" / RUN / "checkpoints" / f"step-{step:08d}" / "state.pt")
    assert orch("prune", RUN, "--keep", "1", "--yes").code == 0
    assert steps_in(here.root("alpha")) == [40, 80]
    flip(here.root("alpha") / "runs" / RUN / "checkpoints" / "step-00000040" / "state.pt")
    ran = orch("prune", RUN, "--keep", "1", "--yes")
    assert (ran.code, "nothing was removed" in ran.err) == (1, True)
    assert steps_in(here.root("alpha")) == [40, 80]


def test_prune_tells_of_a_node_that_refuses(orch: Orch, here: Shelves) -> None:
    (here.root("alpha") / "runs" / RUN / "checkpoints").chmod(0o500)
    played = here.nodes["alpha"].programs

    def refuses(argv: object, stdin: bytes, timeout_s: float) -> Answer:
        assert played is not None
        words = list(argv)  # type: ignore[call-overload]  # a command
        if words[0] == "sh" and "for folder in" in words[2]:
            return 1, "", "mv: Permission denied"
        return played(words, stdin, timeout_s)

    here.nodes["alpha"].programs = refuses
    ran = orch("prune", RUN, "--keep", "1", "--yes")
    (here.root("alpha") / "runs" / RUN / "checkpoints").chmod(0o700)
    assert (ran.code, "Permission denied" in ran.err) == (5, True)


def one(step: int, *, problem: str = "", best: bool = False, age_s: float = 0.0) -> CheckpointCopy:
    part = CheckpointFile(name="manifest.json", size=1, sha256="ab" * 32)
    return CheckpointCopy(
        node="alpha", run_id="r1", step=step, folder=f"/{step}", age_s=age_s, parts=(part,), problem=problem, best=best
    )


def test_what_may_go() -> None:
    held = [one(10), one(20, best=True), one(30, problem="x"), one(40), one(50), one(60, problem="x")]
    gone = [pruned.step for pruned in to_prune(held, 50, keep=1)]
    assert gone == [10, 30, 40]
    assert [pruned.step for pruned in to_prune(held, 50, keep=2)] == [10, 30]
    assert [pruned.step for pruned in to_prune(held, 10, keep=1)] == [30, 40]
    assert to_prune(held, 50, keep=1, younger_than_s=1.0) == []
    assert to_prune([one(10, problem="x")], 10, keep=1) == []


def exporting(spec: ContainerSpec) -> Answer:
    """The trainer's own `export`, as far as a machine sees it."""
    source, out = (mount.source for mount in spec.mounts)
    assert spec.command[:4] == ("python", "-m", "trainer", "export")
    assert spec.command[5:] == ("--to", "/workspace/out/model.safetensors")
    assert [mount.read_only for mount in spec.mounts] == [True, False]
    assert (spec.network, spec.image) == ("none", lan.IMAGE.id)
    (Path(out) / "model.safetensors").write_bytes(b"weights of " + (Path(source) / "state.pt").read_bytes()[:1])
    return 0, "", ""


def test_export_runs_in_the_image_and_brings_the_file(orch: Orch, here: Shelves) -> None:
    engine = here.nodes["alpha"].engine
    engine.held[lan.IMAGE.id], engine.programs = lan.IMAGE, exporting
    ran = orch("export", "--to", "out.safetensors", "--json")
    assert ran.code == 0, ran.err
    assert json_data(ran.out) == {
        "run_id": RUN, "step": 80, "from": "alpha", "file": "out.safetensors", "bytes": 12,
    }  # fmt: skip
    assert Path("out.safetensors").read_bytes() == b"weights of " + bytes([80])
    assert [path.name for path in (here.root("alpha") / "runs" / RUN).iterdir()] == ["checkpoints"]
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    assert orch("export", "--to", "out.safetensors").code == 2


def test_an_export_that_fails_says_why_and_leaves_nothing(orch: Orch, here: Shelves) -> None:
    engine = here.nodes["alpha"].engine
    engine.held[lan.IMAGE.id] = lan.IMAGE
    for code, expected in ((3, 3), (1, 1), (137, 1)):
        engine.programs = lambda _spec, code=code: (code, "", "error: no weights in it")
        ran = orch("export", "--to", "out.safetensors")
        assert (ran.code, "exit code" in ran.err and "no weights in it" in ran.err) == (expected, True)
    assert not Path("out.safetensors").exists()
    assert [path.name for path in (here.root("alpha") / "runs" / RUN).iterdir()] == ["checkpoints"]


def test_export_is_refused_before_anything_is_done(orch: Orch) -> None:
    ran = orch("export", "--to", "model.bin")
    assert (ran.code, "ends in .safetensors" in ran.err) == (2, True)
    ran = orch("export")
    assert (ran.code, "orch build" in ran.err) == (4, True)
