"""Files for many nodes, sent by the controller once: the real program, on nodes that are processes of this computer."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.fleet.fan_out import Outcome
from orchestrator.fleet.relay import Delivered, Destination, FolderToSend, send_folder
from orchestrator.fleet.relay_messages import (
    FileToSend,
    PullFrom,
    RelayBroken,
    RelayReady,
    RelayTask,
    RelayWants,
    encode,
    read_relay_report,
)
from orchestrator.fleet.runs.known_sums import file_sums, folder_digest, names_in
from orchestrator.fleet.runs.send_data import folder_to_send
from orchestrator.nodes import relay_program
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.errors import (
    CommandFailedError,
    ConfigError,
    NodeUnreachableError,
    PreflightError,
    RunFailedError,
)

SOURCE = Path(relay_program.__file__).read_text("utf-8")
NAMES = ("alpha", "beta", "gamma", "delta")


class Dies(LocalNode):
    """Its program ends after its first line."""

    def stream(self, argv: Sequence[str], **how: object) -> Iterator[bytes]:
        lines = super().stream(argv, **how)  # type: ignore[arg-type]  # as it was called
        yield next(lines)
        lines.close()  # type: ignore[attr-defined]  # a generator


class Filled(LocalNode):
    """No file can have more than 1 MiB."""

    def stream(self, argv: Sequence[str], **how: object) -> Iterator[bytes]:
        limited = ["sh", "-c", 'ulimit -f 2048 && exec "$@"', "sh", *argv]
        return super().stream(limited, **how)  # type: ignore[arg-type]  # as it was called


class WithoutPython(LocalNode):
    def stream(self, argv: Sequence[str], **how: object) -> Iterator[bytes]:
        alone = ["env", "PATH=/nothing", f"/bin/{argv[0]}", *argv[1:]]
        return super().stream(alone, **how)  # type: ignore[arg-type]  # as it was called


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "Data"
        (self.data / "deep/er").mkdir(parents=True)
        (self.data / "without files").mkdir()
        (self.data / "large.bin").write_bytes(os.urandom(5_000_000))
        (self.data / "deep/er/-odd\nname").write_bytes(os.urandom(70_000))
        (self.data / "deep/executable").write_text("#!/bin/sh\n")
        (self.data / "deep/executable").chmod(0o755)
        (self.data / "nothing").touch()
        (self.data / "link").symlink_to("large.bin")
        (folder / "outside").write_text("elsewhere")
        (self.data / "outward").symlink_to(folder / "outside")
        self.digest = folder_digest(self.data)
        self.size = sum((self.data / name).stat().st_size for name in names_in(self.data) if name != "link")
        self.nodes = {name: LocalNode(name, f"127.0.0.{11 + number}") for number, name in enumerate(NAMES)}
        self.progress: list[tuple[str, Progress]] = []
        self.direct: list[str] = []

    def send(self, content: FolderToSend | None = None) -> dict[str, Outcome[Destination, Delivered]]:
        targets = [Destination(node=node, folder=str(self.copy(name))) for name, node in self.nodes.items()]
        content = content or folder_to_send(self.data, file_sums(self.data, names_in(self.data)))
        sent = send_folder(content, targets, lambda *it: self.progress.append(it), otherwise=self.otherwise)
        return {outcome.item.node.name: outcome for outcome in sent}

    def otherwise(self, target: Destination) -> Delivered:
        self.direct.append(target.node.name)
        return Delivered(folder=target.folder, came=0, fed=0)

    def copy(self, name: str) -> Path:
        return self.folder / name / "data"

    def partial(self, name: str) -> Path:
        return self.folder / name / "data.partial"

    def complete(self) -> list[str]:
        return [name for name in NAMES if self.copy(name).is_dir() and folder_digest(self.copy(name)) == self.digest]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def fed(sent: dict[str, Outcome[Destination, Delivered]]) -> int:
    return sum(outcome.value().fed for outcome in sent.values() if not outcome.error)


def test_the_controller_sends_once(scene: Scene) -> None:
    sent = scene.send()
    assert scene.complete() == list(NAMES)
    assert fed(sent) == scene.size
    assert {outcome.value().came for outcome in sent.values()} == {scene.size}
    copy = scene.copy("delta")
    assert (copy / "without files").is_dir()
    assert (copy / "link").is_symlink()
    assert not (copy / "outward").is_symlink()
    assert (copy / "deep/executable").stat().st_mode & 0o777 == 0o755
    assert {path.name for path in copy.parent.iterdir()} == {"data"}
    assert {outcome.value().came for outcome in scene.send().values()} == {0}


def test_what_has_arrived_is_not_sent_again(scene: Scene) -> None:
    large = (scene.data / "large.bin").read_bytes()
    for name, there in (("alpha", 1_000_000), ("gamma", 4_999_999)):
        scene.partial(name).mkdir(parents=True)
        (scene.partial(name) / "large.bin").write_bytes(large[:there])
    sent = scene.send()
    assert scene.complete() == list(NAMES)
    assert sent["gamma"].value().came == fed(sent) == scene.size - 4_999_999
    assert sent["alpha"].value().came < 4_100_000


def test_what_has_arrived_is_not_trusted(scene: Scene) -> None:
    scene.partial("beta").mkdir(parents=True)
    (scene.partial("beta") / "large.bin").write_bytes(b"of someone else")
    scene.send()
    assert scene.complete() == list(NAMES)
    (scene.data / "deep/executable").write_text("#!/bin/ls\n")
    other = folder_to_send(scene.data, file_sums(scene.data, names_in(scene.data)))
    (scene.data / "deep/executable").write_text("#!/bin/sh\n")
    scene.folder = scene.folder / "other"
    for name, outcome in scene.send(other).items():
        assert isinstance(outcome.error, RunFailedError), name
        assert "deep/executable is not what was meant to be sent" in str(outcome.error)
        assert not scene.copy(name).exists()


@pytest.mark.parametrize("name", ["alpha", "beta", "delta"])
def test_a_node_that_is_gone_is_left_out(scene: Scene, name: str) -> None:
    scene.nodes[name] = Dies(name, scene.nodes[name].address)
    sent = scene.send()
    error = sent[name].error
    assert isinstance(error, NodeUnreachableError)
    assert f"orch doctor --nodes {name}" in error.hint
    assert scene.complete() == [other for other in NAMES if other != name]
    assert not scene.copy(name).exists()


def test_a_disk_that_takes_no_more_is_the_error_of_its_node(scene: Scene) -> None:
    scene.nodes["beta"] = Filled("beta", scene.nodes["beta"].address)
    sent = scene.send()
    assert isinstance(sent["beta"].error, CommandFailedError)
    assert "writing large.bin failed: File too large" in str(sent["beta"].error)
    assert scene.complete() == ["alpha", "gamma", "delta"]
    scene.nodes["beta"] = LocalNode("beta", "127.0.0.12")
    assert 0 < fed(scene.send()) < 5_000_000
    assert scene.complete() == list(NAMES)


def test_a_node_that_no_other_reaches_receives_from_another(scene: Scene) -> None:
    scene.nodes["beta"] = LocalNode("beta", "192.0.2.1")
    sent = scene.send()
    assert scene.complete() == list(NAMES)
    assert (fed(sent), sent["beta"].value().fed) == (scene.size, 0)


def test_a_node_without_python_is_sent_to_otherwise(scene: Scene) -> None:
    scene.nodes["gamma"] = WithoutPython("gamma", "127.0.0.13")
    scene.send()
    assert scene.direct == ["gamma"]
    assert scene.complete() == ["alpha", "beta", "delta"]


def never(file: FileToSend, offset: int) -> Iterator[bytes]:
    raise AssertionError(f"{file.name} is read from {offset} on")


def test_too_little_room_is_refused_before_anything_is_sent(scene: Scene) -> None:
    huge = FolderToSend(what="data", files=[FileToSend("a", 10**15, "0" * 64)], read=never)
    for name, outcome in scene.send(huge).items():
        assert isinstance(outcome.error, PreflightError)
        assert "data needs 1000000000 MB" in outcome.error.message
        assert f"orch shell {name}" in outcome.error.hint


def test_a_file_that_becomes_shorter_is_an_error_of_the_folder(scene: Scene) -> None:
    content = folder_to_send(scene.data, file_sums(scene.data, names_in(scene.data)))
    (scene.data / "large.bin").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"large.bin cannot be read: it has become shorter while it was copied"):
        scene.send(content)
    assert not any(scene.copy(name).exists() for name in NAMES)


def test_a_stranger_gets_nothing_and_changes_nothing(tmp_path: Path) -> None:
    content = b"of the controller"
    task = RelayTask(
        token="a" * 64, address="127.0.0.1", folder=f"{tmp_path}/data", skipped=0, links={}, folders=(),
        files=[("file", len(content), hashlib.sha256(content).hexdigest(), 0o600)],
    )  # fmt: skip
    argv = [sys.executable, "-c", SOURCE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as relay:
        assert relay.stdin is not None
        assert relay.stdout is not None
        relay.stdin.write(encode(task))
        port = json.loads(relay.stdout.readline())["ready"]["port"]
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            socket.create_connection(("127.0.0.1", port)) as it,
        ):
            assert len(it.recv(100)) == relay_program.PROOF
            it.sendall(bytes(2 * relay_program.PROOF) + relay_program.RANGE.pack(0, 0, 1))
            with suppress(ConnectionResetError):
                assert it.recv(100) == b""
            relay.stdin.write(encode(PullFrom()) + content)
            reports = (json.loads(line) for line in iter(relay.stdout.readline, b"") if b"moved" not in line)
            lines = [next(reports), next(reports)]
            assert len(silent.recv(100)) == relay_program.PROOF
        assert lines == [{"wants": {"file": 0, "offset": 0, "end": 1}}, {"finished": {"received": len(content)}}]
    assert relay.returncode == 0
    assert (tmp_path / "data/file").read_bytes() == content


def test_the_program_runs_on_old_pythons() -> None:
    ast.parse(SOURCE, feature_version=(3, 8))


@pytest.mark.parametrize(
    "line",
    [
        "not JSON", "[]", "null", "{}", "7", '{"ready": {}, "moved": {}}', '{"other": {}}', '{"ready": []}',
        '{"ready": {"port": 1, "held": 0, "free": 9}}',
        '{"ready": {"port": "x", "held": 0, "free": 9, "folder": "/a"}}',
        '{"ready": {"port": 70000, "held": 0, "free": 9, "folder": "/a"}}',
        '{"ready": {"port": 1, "held": 19, "free": 9, "folder": "/a"}}',
        '{"ready": {"port": 1, "held": 0, "free": -1, "folder": "/a"}}',
        '{"ready": {"port": true, "held": 0, "free": 9, "folder": "/a"}}',
        '{"moved": {"held": 1, "received": 1}}', '{"moved": {"held": [1], "received": 1, "verified": 1}}',
        '{"moved": {"held": 1, "received": 1%s, "verified": 1}}' % ("0" * 400),
        '{"moved": {"held": 1, "received": 55, "verified": 1}}',
        '{"moved": {"held": NaN, "received": 1, "verified": 1}}',
        '{"wants": {"file": 0, "offset": 9, "end": 1}}', '{"wants": {"file": 1, "offset": 0, "end": 1}}',
        '{"wants": {"file": 2, "offset": 0, "end": 3}}', '{"wants": {"file": 0, "offset": 0, "end": 3}}',
        '{"broken": {"source": "beta", "why": "x", "wrong": 2}}',
        '{"broken": {"source": 1, "why": "x", "wrong": null}}',
        '{"failed": {"kind": "odd", "why": "x"}}', '{"failed": {"kind": ["full"], "why": "x"}}', "[" * 50_000,
        '{"failed": {"kind": "full", "why": "%s"}}' % ("x" * 70_000),
    ],
)  # fmt: skip
def test_a_report_that_no_relay_writes_is_refused(line: str) -> None:
    files = [FileToSend(name=name, size=9, sha256="", mode=0o644) for name in "ab"]
    with pytest.raises(ValueError, match=r".") as raised:
        read_relay_report(line.encode(), files, 18)
    assert not isinstance(raised.value, UnicodeError)


def test_a_report_of_a_relay() -> None:
    files = [FileToSend(name=name, size=9, sha256="", mode=0o644) for name in "ab"]
    for report in (
        RelayReady(port=4711, held=9, free=10**12, folder="/data"),
        RelayBroken(source="", why="x", wrong=1),
        RelayWants(file=0, offset=8, end=2),
    ):
        kind = type(report).__name__.removeprefix("Relay").lower()
        assert read_relay_report(json.dumps({kind: asdict(report)}).encode(), files, 18) == report
