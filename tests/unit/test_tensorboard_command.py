"""`orch tensorboard` on machines in memory whose files are real, with a TensorBoard of the test on the PATH."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli import tensorboard as command
from orchestrator.fleet import tensorboard as files
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.shelves import RUN, Shelves
from tests.unit.conftest import Ran

NAME = "events.out.tfevents.1767366000.alpha.7.0"
OTHER = "0102-1504-cd34"
# The program sees the copies, adds to the file on the node, ends the command once that is copied, and notes
# what ended it.
SHOWS = f"""#!{sys.executable}
import glob, os, signal, socket, sys, time
def ended(*_signal):
    open("{{notes}}", "a").write("ended\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
listening = socket.create_server((sys.argv[4], int(sys.argv[6])))
shown = sorted(glob.glob("*/*/**/events*", recursive=True))
open("{{notes}}", "w").write(" ".join(sys.argv[1:]) + "\\n" + " ".join(shown) + "\\n")
listening.accept()
open("{{added}}", "ab").write(b"more")
deadline = time.monotonic() + 60
while open("{RUN}/alpha/{NAME}", "rb").read() != b"figuresmore" and time.monotonic() < deadline:
    time.sleep(0.02)
os.kill(os.getppid(), signal.{{how}})
signal.pause()
"""


@dataclass(frozen=True)
class Scene:
    """Machines with runs, the folder of the copies, and the program that is on the PATH."""

    machines: Shelves
    copies: Path
    programs: Path
    orch: Callable[..., Ran]

    def write(self, node: str, path: str, content: str = "figures", run: str = RUN) -> Path:
        file = self.machines.root(node) / "runs" / run / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def install(self, text: str, name: str = "tensorboard") -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Scene:
    here = Shelves(tmp_path / "machines")
    for name in ("user", "programs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "START_S", 0.02)
    monkeypatch.setattr(command, "EVERY_S", 0.05)
    nodes = [f"  {spec.name}: {{address: {spec.address}, workspace: {spec.workspace}}}" for spec in here.specs]
    Path("inventory.yaml").write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))

    def run(*argv: str) -> Ran:
        with connecting_by(here.connect), monkeypatch.context() as changed:
            changed.setenv("PATH", f"{tmp_path / 'programs'}:/usr/bin:/bin")
            code = main(["tensorboard", *argv])
        written = capfd.readouterr()
        assert "Traceback" not in written.err
        return Ran(code, written.out, written.err)

    return Scene(here, tmp_path / "cache" / "orch" / "tensorboard", tmp_path / "programs", run)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_files_of_all_nodes_are_shown_and_then_what_is_added(scene: Scene, tmp_path: Path, how: str) -> None:
    added = scene.write("alpha", f"tensorboard/{NAME}")
    scene.write("beta", "code/lightning_logs/v 1/events.out.tfevents.2", run=OTHER)
    scene.write("beta", "code/train.py", run=OTHER)
    notes = tmp_path / "notes"
    scene.install(SHOWS.format(notes=notes, added=added, how=how))
    ran = scene.orch(RUN, OTHER[:12])
    assert ran.code == 0, ran.err
    options, shown, end = notes.read_text().splitlines()
    port = re.fullmatch(r"--logdir \. --host 127\.0\.0\.1 --port ([0-9]+)", options)
    assert port
    assert ran.out == f"http://127.0.0.1:{port[1]}/\n"
    assert shown == f"{RUN}/alpha/{NAME} {OTHER}/beta/code/lightning_logs/v 1/events.out.tfevents.2"
    assert end == "ended"
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "figuresmore"
    assert f"event files: {scene.copies / RUN}\n" in ran.err
    assert not list(scene.copies.rglob("*.py"))


def test_only_what_was_added_is_read(scene: Scene) -> None:
    scene.install("#!/bin/sh\nexit 3\n")
    scene.write("alpha", f"tensorboard/{NAME}", "first")
    alpha = scene.machines.nodes["alpha"]
    assert scene.orch(RUN).code == 1
    scene.write("alpha", f"tensorboard/{NAME}", "firstsecond")
    alpha.calls.clear()
    scene.orch(RUN)
    scene.orch(RUN)
    assert [argv[2] for argv in alpha.calls if argv[0] == "tail"] == ["+6"]
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "firstsecond"


@pytest.mark.parametrize("name", ["tensorboard", "python3"])
def test_a_tensorboard_that_is_missing_or_ends(scene: Scene, name: str) -> None:
    """Without one on the PATH, that of the user's Python is tried, away from the folder that the user is in."""
    if name == "python3" and any((folder / "tensorboard").exists() for folder in map(Path, ("/usr/bin", "/bin"))):
        pytest.skip("this computer has a TensorBoard")
    scene.install('#!/bin/sh\necho "$1 $2, in $PWD" >&2\nexit 3\n', name)
    scene.write("alpha", f"tensorboard/{NAME}")
    ran = scene.orch(RUN)
    assert ran.code == 1
    assert "error: TensorBoard ended with exit code 3\n  → not installed? uv tool install tensorboard" in ran.err
    assert f"event files: {scene.copies / RUN}\n" in ran.err
    assert ("-m tensorboard.main" in ran.err) is (name == "python3")
    assert f"in {Path.cwd()}\n" not in ran.err


def test_a_run_in_a_folder_of_its_own(scene: Scene, tmp_path: Path) -> None:
    """As of `--engine process`: its plan says where it is, for `orch pull`, too."""
    scene.install("#!/bin/sh\nexit 3\n")
    record = RunRecord(RUN)
    specs = [lan.spec("alpha", workspace=str(tmp_path / "elsewhere"))]
    record.save_plan(replace(lan.plan_of(*specs), run_id=RUN))
    file = tmp_path / "elsewhere" / "orch" / "runs" / RUN / NAME
    file.parent.mkdir(parents=True)
    file.write_text("figures")
    assert scene.orch(RUN).code == 1
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "figures"
    with connecting_by(scene.machines.connect):
        assert main(["pull", RUN]) == 0
    assert Path("runs", RUN, NAME).read_text() == "figures"


def test_refusals(scene: Scene) -> None:
    scene.install("#!/bin/sh\nexit 3\n")
    scene.write("alpha", "metrics.jsonl")
    without = scene.orch(RUN)
    assert (without.code, f"no TensorBoard files of {RUN}" in without.err) == (3, True)
    assert "error: no node that answered has event files\n  → orch runs" in without.err
    assert scene.orch("unknown").code == 3
    scene.write("beta", f"tensorboard/{NAME}", run=OTHER)
    assert f"note: no TensorBoard files of {RUN}" in scene.orch(RUN, OTHER).err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = scene.orch(OTHER, "--port", str(taken.getsockname()[1]))
    assert (ran.code, "cannot be listened on" in ran.err) == (6, True)


def hostile(listed: str, content: str = "x" * 1000) -> Callable[..., Answer]:
    """Programs of a node that answers what it likes."""

    def answer(argv: object, _stdin: bytes, _timeout_s: float) -> Answer:
        return 0, content if "tail" in str(argv)[:8] else listed, ""

    return answer


def test_a_node_that_lies(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name leaves the folder, no other file comes, and never more bytes than announced or than fit."""
    names = (
        "../events.out.tfevents.1", "/events.out.tfevents.2", "a/../../events.out.tfevents.3", "state.pt",
        "events.out.tfevents.4/state.pt", "x/./events.out.tfevents.5", "tensorboard/events.out.tfevents.ok",
    )  # fmt: skip
    listed = "P/w\0" + "".join(f"F5 8 1767366000.0 {name}\0" for name in names)
    node = FakeNode("alpha", programs=hostile(listed))
    monkeypatch.setattr(files, "run_with_files", lambda *_: RUN)
    problems: list[str] = []
    event_files = files.EventFiles([node], {"": {"alpha": "/w"}})
    event_files.copy(problems.append)
    assert problems == []
    written = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert written == [scene.copies / RUN / "alpha" / "events.out.tfevents.ok"]
    assert written[0].read_text() == "xxxxx"
    node.programs = hostile("P/w\0F900000 8 1767366000.0 events.out.tfevents.ok\0")
    monkeypatch.setattr(files, "SPARE", 1 << 60)
    event_files.copy(problems.append)
    assert re.match("note: .*MiB are free in", problems[0])
    assert written[0].stat().st_size == 5
