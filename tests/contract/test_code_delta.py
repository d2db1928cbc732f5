"""Code that is sent a second time: what the newest run of the node has is copied there, whatever connects it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.fleet.runs.code_files import code_digest
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.upload_code import SENT_WHOLE, upload_code
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.ssh import SshNode


class Sent:
    """A node that notes what is put on it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.paths: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._node, name)

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        self.paths = sorted(path for path in only or () if (source / path).is_file())
        self._node.put(source, target, only=only)


@pytest.fixture(params=["ssh", "local"])
def sent(request: pytest.FixtureRequest) -> Sent:
    ssh: SshNode | None = request.getfixturevalue("ssh_node") if request.param == "ssh" else None
    return Sent(ssh or LocalNode("alpha"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"w" * SENT_WHOLE)
    (folder / "train.py").write_text("print(1)")
    (folder / "pkg" / "a b\nñ.py").write_text("x = 1")
    (folder / "run.sh").write_text("torchrun train.py")
    (folder / "run.sh").chmod(0o755)
    return folder


def launched(sent: Sent, code: Path, run: Path) -> list[str]:
    """Upload the code of a run, and return the files that were sent."""
    run.mkdir(parents=True, exist_ok=True)
    upload_code(sent, code, str(run), code_digest(code))  # type: ignore[arg-type]  # a node by its attributes
    assert folder_digest(run / "code") == code_digest(code)
    assert (run / "code/run.sh").stat().st_mode & 0o111
    return sent.paths


def test_a_second_launch_sends_what_has_changed(sent: Sent, code: Path, tmp_path: Path) -> None:
    everything = sorted(str(path.relative_to(code)) for path in code.rglob("*") if path.is_file())
    assert launched(sent, code, tmp_path / "runs/first") == everything
    (code / "train.py").write_text("print(2)")
    (code / "new.py").write_text("")
    assert launched(sent, code, tmp_path / "runs/second") == ["new.py", "run.sh", "train.py"]


def test_a_file_that_was_changed_on_the_node_is_sent_again(sent: Sent, code: Path, tmp_path: Path) -> None:
    launched(sent, code, tmp_path / "runs/first")
    there = tmp_path / "runs/first/code"
    (there / "weights.bin").write_bytes(b"x" * SENT_WHOLE)
    (there / "train.py").unlink()
    (there / "train.py").symlink_to("/etc/hostname")
    assert launched(sent, code, tmp_path / "runs/second") == ["run.sh", "train.py", "weights.bin"]
    assert not (tmp_path / "runs/second/code/train.py").is_symlink()


def test_a_copy_that_broke_off_is_no_source(sent: Sent, code: Path, tmp_path: Path) -> None:
    launched(sent, code, tmp_path / "runs/first")
    next((tmp_path / "runs/first").glob("code-*.list")).unlink()
    assert "weights.bin" in launched(sent, code, tmp_path / "runs/second")


def test_small_code_is_sent_whole_without_asking(sent: Sent, code: Path, tmp_path: Path) -> None:
    (code / "weights.bin").unlink()
    launched(sent, code, tmp_path / "runs/first")
    assert "train.py" in launched(sent, code, tmp_path / "runs/second")
