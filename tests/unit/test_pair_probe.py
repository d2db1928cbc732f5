"""Every node to every other, with real sockets on this computer's loopback, and what is left behind: nothing."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from orchestrator.fleet.readiness.pair_probe import RANDOM_PORTS, probe_pairs
from orchestrator.nodes.fake import Answer, FakeEngine, FakeNode
from orchestrator.nodes.interface import Completed
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import reach_program
from orchestrator.nodes.probes.reach_program import payload
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import EngineError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.network import Ended
from tests import lan

IMAGE = "sha256:image"
TOKEN = "t" * 32
NETWORK = f"127.0.{sys.version_info.minor}"
"""Loopback addresses of these tests alone: scripts/test runs them with several interpreters at the same time."""


class HeldEngine(FakeEngine):
    """Runs what a container would, as processes of this computer, which end with it."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.inside: dict[str, list[int]] = {}
        self.loses: list[str] = []
        """Verbs whose next answer is lost, as by a busy engine."""

    def remove(self, container: str) -> None:
        super().remove(container)
        for pid in self.inside.pop(container, []):
            psutil.Process(pid).kill()

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        self._called("execute", container, *argv)
        self._facts(container)
        ran = subprocess.run((sys.executable, *argv[1:]), capture_output=True, text=True, check=False)
        if argv[3] == "listen":
            self.inside.setdefault(container, []).append(json.loads(ran.stdout)["pid"])
        lost = argv[3] in self.loses
        if lost:
            self.loses.remove(argv[3])
        out = "" if lost else ran.stdout
        return Completed(node=self.node, argv=tuple(argv), exit_code=ran.returncode, stdout=out, stderr=ran.stderr)


def loopback(name: str) -> NodeSpec:
    return NodeSpec(name=name, address=f"{NETWORK}.{1 + lan.NAMES.index(name)}", connection="local")


def host(name: str) -> LocalNode:
    return LocalNode(name, loopback(name).address, HeldEngine(name))


@pytest.fixture
def port() -> int:
    """A rendezvous port that is free on every address."""
    with closing(socket.create_server(("0.0.0.0", 0))) as server:  # noqa: S104  # to learn a port that is free
        return int(server.getsockname()[1])


def listeners() -> list[int]:
    """Processes that still hold the program's `listen`, of the addresses used here. One that was killed may be listed
    for a moment; one that was not ended stays for longer than is waited here."""
    held = []
    for process in psutil.process_iter(("cmdline",)):
        words = process.info["cmdline"] or ()
        if "listen" in words and any(word.startswith(f"{NETWORK}.") for word in words):
            held.append(process)
    return [process.pid for process in psutil.wait_procs(held, timeout=5)[1]]


def test_all_pairs_by_the_hosts_python(port: int) -> None:
    names = lan.NAMES[:3]
    report = probe_pairs([loopback(name) for name in names], [host(name) for name in names], {}, port)
    assert report.silent == {}
    for name in names:
        paths = report.paths[name]
        assert {path.ended for path in paths} == {Ended.OK}
        assert [path.peer for path in paths if path.master] == [other for other in names if other != name]
        assert all(path.port == port for path in paths if path.master)
        assert len(paths) == 2 * (1 + RANDOM_PORTS)
    assert listeners() == []


def test_in_a_container_where_there_is_an_image(port: int) -> None:
    nodes = [host("alpha"), host("beta")]
    report = probe_pairs([loopback("alpha"), loopback("beta")], nodes, {"alpha": IMAGE}, port, project="lab")
    assert {path.ended for paths in report.paths.values() for path in paths} == {Ended.OK}
    engine = nodes[0].engine
    assert isinstance(engine, HeldEngine)
    assert [call[0] for call in engine.calls] == ["create", "start", "execute", "execute", "remove"]
    assert engine.calls[0][1].startswith("lab-reach-alpha-")
    assert engine.made == {}


@pytest.mark.parametrize("verb", ["listen", "dial"])
def test_an_answer_that_the_engine_loses_is_asked_for_again(port: int, verb: str) -> None:
    nodes = [host("alpha"), host("beta")]
    engine = nodes[0].engine
    assert isinstance(engine, HeldEngine)
    engine.loses = [verb]
    report = probe_pairs([loopback("alpha"), loopback("beta")], nodes, {"alpha": IMAGE}, port)
    assert report.silent == {}
    assert {path.ended for paths in report.paths.values() for path in paths} == {Ended.OK}
    assert len(report.paths["beta"]) == 1 + RANDOM_PORTS
    assert (engine.made, listeners()) == ({}, [])


def test_the_container_is_confined_and_ends_by_itself(port: int) -> None:
    made: list[ContainerSpec] = []

    class Watched(HeldEngine):
        def create(self, spec: ContainerSpec) -> str:
            made.append(spec)
            return super().create(spec)

    node = LocalNode("alpha", loopback("alpha").address, Watched("alpha"))
    probe_pairs([loopback("alpha")], [node], {"alpha": IMAGE}, port)
    (spec,) = made
    assert (spec.image, spec.network, spec.auto_remove, spec.mounts, spec.gpus) == (IMAGE, "host", True, (), False)
    assert spec.command == ("sleep", "45")


def test_a_port_that_is_taken_is_left_alone(port: int) -> None:
    with closing(socket.create_server((loopback("beta").address, port))):
        report = probe_pairs([loopback("alpha"), loopback("beta")], [host("alpha"), host("beta")], {}, port)
    assert [path.master for path in report.paths["alpha"]] == [False] * RANDOM_PORTS
    assert [path.master for path in report.paths["beta"]].count(True) == 1


def test_an_address_that_is_not_the_nodes(port: int) -> None:
    spec = NodeSpec(name="beta", address="192.0.2.77", connection="local")
    nodes = [host("alpha"), LocalNode("beta", spec.address, HeldEngine("beta"))]
    report = probe_pairs([loopback("alpha"), spec], nodes, {}, port)
    assert report.silent == {"beta": "cannot listen on 192.0.2.77: Cannot assign requested address"}
    assert report.paths == {"alpha": (), "beta": ()}


def test_a_container_that_will_not_start_leaves_nothing(port: int) -> None:
    nodes = [host("alpha"), host("beta")]
    engine = nodes[0].engine
    assert isinstance(engine, HeldEngine)
    engine.failures["start"] = EngineError("no room", node="alpha")
    report = probe_pairs([loopback("alpha"), loopback("beta")], nodes, {"alpha": IMAGE}, port)
    assert engine.made == {}
    assert {path.ended for path in report.paths["alpha"]} == {Ended.OK}


def test_a_machine_without_python_is_silent(port: int) -> None:
    def no_python(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        return 127, "", "python3: not found"

    bare = FakeNode(name="beta", address=f"{NETWORK}.2", programs=no_python)
    report = probe_pairs([loopback("alpha"), loopback("beta")], [host("alpha"), bare], {}, port)
    assert report.silent == {"beta": "listen for the pair probe failed: python3 exited with 127: python3: not found"}


def test_interrupted_it_leaves_nothing(port: int) -> None:
    class Interrupted(HeldEngine):
        def execute(self, container: str, argv: Sequence[str]) -> Completed:
            super().execute(container, argv)
            raise KeyboardInterrupt

    engine = Interrupted("alpha")
    nodes = [LocalNode("alpha", loopback("alpha").address, engine), host("beta")]
    with pytest.raises(KeyboardInterrupt):
        probe_pairs([loopback("alpha"), loopback("beta")], nodes, {"alpha": IMAGE}, port)
    assert engine.made == {}
    assert listeners() == []


def program(*words: str) -> Any:
    """The program as a node runs it."""
    source = Path(reach_program.__file__).read_text("utf-8")
    ran = subprocess.run((sys.executable, "-c", source, *words), capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def dialled(port: int) -> tuple[str, str]:
    ((_, _, ended, _, detail),) = program("dial", TOKEN, f"{NETWORK}.1:{port}")
    return ended, detail


def test_a_stranger_gets_no_answer() -> None:
    answer = program("listen", f"{NETWORK}.1", "0", "1", "20", TOKEN)
    (port,) = answer["ports"]
    with socket.create_connection((f"{NETWORK}.1", port), timeout=5) as stranger:
        stranger.sendall(b"x" * len(TOKEN))
        assert stranger.recv(1) == b""
    assert dialled(port) == ("ok", "")
    assert program("end", str(answer["pid"]), "another token") == {"ended": True}
    assert dialled(port) == ("ok", ""), "whose token it is not, may not end it"
    program("end", str(answer["pid"]), TOKEN)
    assert dialled(port)[0] == "refused"


def test_an_old_python_understands_it() -> None:
    """The host's python3, whichever that is, runs it where the image is missing."""
    ast.parse(Path(reach_program.__file__).read_text("utf-8"), feature_version=(3, 7))


def test_it_ends_by_itself() -> None:
    answer = program("listen", f"{NETWORK}.1", "0", "1", "1", TOKEN)
    process = psutil.Process(answer["pid"]) if psutil.pid_exists(answer["pid"]) else None
    if process:
        process.wait(timeout=10)
    assert dialled(answer["ports"][0])[0] == "refused"


@pytest.mark.parametrize(
    ("bytes_sent", "ended"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", ("reset", "something else answers there")),
        (payload(b"t" * 32)[:16] + payload(b"t" * 32)[:1000], ("cut short", "1000 of 65536 bytes came")),
        (payload(b"t" * 32)[:16] + b"?" * 65536, ("reset", "the bytes were changed on the way")),
    ],
    ids=("a stranger", "cut short", "changed"),
)
def test_what_else_may_answer(bytes_sent: bytes, ended: tuple[str, str]) -> None:
    with closing(socket.create_server((f"{NETWORK}.1", 0))) as server:
        Thread(target=_answer, args=(server, bytes_sent), daemon=True).start()
        assert dialled(server.getsockname()[1]) == ended


def _answer(server: socket.socket, answer: bytes) -> None:
    connection = server.accept()[0]
    with connection:
        connection.recv(len(TOKEN))
        connection.sendall(answer)
        with suppress(OSError):  # the caller may have hung up on what it took for a stranger's answer
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
