"""Every implementation of the seam, ready to be asked the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.nodes import host_keys
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import Engine, Node
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.processes.engine import ProcessEngine
from orchestrator.nodes.ssh import SshNode
from tests.contract.base_image import IMAGE, LABEL, brought_to
from tests.contract.played import PlayedEngine, play
from tests.contract.sshd import ADDRESS, Server, sshd

docker = pytest.mark.docker


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home, a configuration and a state of the tests' own."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def ssh_node(server: Server, home: Path) -> Iterator[SshNode]:
    """Connected to the server, whose key was accepted."""
    host_keys.accept(ADDRESS, server.port, host_keys.offered_key(ADDRESS, server.port))
    node = SshNode(server.spec())
    yield node
    node.close()


@pytest.fixture(params=["ssh", "local", "fake"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    if request.param == "ssh":
        ssh: SshNode = request.getfixturevalue("ssh_node")
        return ssh
    if request.param == "local":
        return LocalNode("alpha", ADDRESS)
    return FakeNode("alpha", root=Path("/"), address=ADDRESS, programs=play)


@pytest.fixture(params=[pytest.param("docker", marks=docker), pytest.param("ssh", marks=docker), "process", "fake"])
def engine(request: pytest.FixtureRequest, home: Path) -> Engine:
    """An engine that has `IMAGE`, if it has images at all."""
    if request.param == "process":
        return ProcessEngine("alpha")
    if request.param == "fake":
        return PlayedEngine("alpha")
    return request.getfixturevalue("docker_engine" if request.param == "docker" else "docker_over_ssh")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def docker_engine(home: Path) -> Iterator[Engine]:
    node = LocalNode("alpha", ADDRESS)
    for left in node.engine.containers({LABEL: ""}):  # by a test run that was killed: its names are taken
        node.engine.remove(left.id)
    brought_to(node.engine)
    yield node.engine
    node.engine.remove_image(IMAGE)
    node.close()


@pytest.fixture(scope="module")
def docker_over_ssh(docker_engine: Engine, ssh_node: SshNode) -> Engine:
    """The same engine by another way, so it has the image."""
    return ssh_node.engine
