"""A LAN in a box for real: two machines on this computer's engine, and what one can do to them."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from orchestrator.cli import main
from orchestrator.lab.control import shell_command
from tests.json_output import json_data

NAME = f"labtest{os.getpid()}"
LABEL = f"orch.lab={NAME}"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env()
    except DockerException:
        pytest.skip("no Docker Engine answers")
    yield client
    client.close()


@pytest.fixture(scope="module")
def folder(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a lab of two machines, beside whatever lab the user has up."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(state))
        try:
            assert lab("up", "--nodes", "2", "--name", NAME, "--link", "100mbit") == 0
            yield state / "orch" / "lab"
        finally:
            assert lab("down", "--yes") == 0
        assert leftovers(engine) == []
        assert not (state / "orch" / "lab").exists()
        assert lab("down", "--yes") == 0  # nothing to do is no error


def lab(*arguments: str) -> int:
    return main(["lab", *arguments])


def leftovers(engine: docker.DockerClient) -> list[str]:
    chosen: dict[str, str | list[str] | bool] = {"label": LABEL}
    containers = engine.containers.list(all=True, filters=chosen)
    volumes, networks = engine.volumes.list(filters=chosen), engine.networks.list(filters=chosen)
    return [str(thing.name) for thing in (*containers, *volumes, *networks)]


def on(node: str, *command: str) -> str:
    """Run a command on a node, over plain ssh with the lab's keys, for its output."""
    argv = shell_command(node, command)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def states(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert lab("status", "--json") == 0
    return [node["state"] for node in json_data(capsys.readouterr().out)["nodes"]]


def reaches(address: str, port: int = 22) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False


def address_of(folder: Path, index: int) -> str:
    return str(json.loads((folder / "lab.json").read_text())["nodes"][index]["address"])


def node_reaches(engine: docker.DockerClient, node: str, address: str) -> bool:
    """Looked at through the engine, which is the machine's console: it works on a node that is cut off, too."""
    probe = ["timeout", "2", "bash", "-c", f"exec 3<>/dev/tcp/{address}/22"]
    return bool(engine.containers.get(f"orch-{NAME}-{node}").exec_run(probe).exit_code == 0)


def test_each_node_is_a_machine_of_its_own(folder: Path) -> None:
    seen = [
        on(node, "sh", "-c", "hostname; cat /etc/machine-id; docker info --format '{{.ID}}'") for node in ("1", "2")
    ]
    (alpha, first_id, first_engine), (beta, second_id, second_engine) = (text.split("\n") for text in seen)
    assert (alpha, beta) == ("alpha", "beta")
    assert first_id != second_id
    assert first_engine != second_engine
    assert on("alpha", "id", "-un") == "orch"


def test_keys_are_pinned_and_private(folder: Path) -> None:
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    wrong = list(shell_command("alpha", ("true",)))
    wrong[wrong.index(next(part for part in wrong if part.startswith("UserKnownHostsFile")))] = (
        "UserKnownHostsFile=/dev/null"
    )
    refused = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_words_reach_the_node_as_they_are(folder: Path) -> None:
    assert on("beta", "printf", "%s|", "a b", "$HOME", "it's; true") == "a b|$HOME|it's; true|"


def test_a_cut_node_reaches_no_other_until_it_is_healed(
    folder: Path, engine: docker.DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    alpha, beta = address_of(folder, 0), address_of(folder, 1)
    assert lab("cut", "2") == 0
    assert lab("cut", "beta") == 0  # twice is once
    assert states(capsys) == ["up", "cut"]
    assert not reaches(beta)
    assert not node_reaches(engine, "alpha", beta)
    assert not node_reaches(engine, "beta", alpha)
    assert lab("heal", "beta") == 0
    assert states(capsys) == ["up", "up"]
    assert node_reaches(engine, "alpha", beta)
    assert node_reaches(engine, "beta", alpha)


def test_power_off_and_on_keeps_address_disk_identity_and_link(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on("beta", "sh", "-c", "echo kept > ~/file")
    before = on("beta", "cat", "/etc/machine-id")
    assert lab("kill", "beta") == 0
    assert states(capsys) == ["up", "down"]
    assert lab("cut", "beta") == 2
    assert "is powered off" in capsys.readouterr().err
    assert lab("start", "beta") == 0
    assert on("beta", "cat", "/etc/machine-id", "file").split("\n") == [before, "kept"]
    assert address_of(folder, 1) in on("beta", "hostname", "-I")
    assert "rate 100Mbit" in on("beta", "/usr/sbin/tc", "qdisc", "show", "dev", "eth0")


def test_the_link_changes_while_the_node_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lab("link", "10mbit", "alpha") == 0
    assert "rate 10Mbit" in on("alpha", "/usr/sbin/tc", "qdisc", "show", "dev", "eth0")
    assert "rate 100Mbit" in on("beta", "/usr/sbin/tc", "qdisc", "show", "dev", "eth0")
    assert lab("link", "off") == 0
    assert "tbf" not in on("alpha", "/usr/sbin/tc", "qdisc", "show", "dev", "eth0")


def test_a_second_up_starts_what_is_off_and_refuses_another_size(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab("kill", "1", "2") == 0
    assert lab("up", "--nodes", "2") == 0
    assert states(capsys) == ["up", "up"]
    assert lab("up", "--nodes", "3") == 6
    assert "it has 2 nodes" in capsys.readouterr().err


def test_the_engine_inside_runs_containers_of_another_user(folder: Path, engine: docker.DockerClient) -> None:
    """SYS_PTRACE is what lets `docker exec` into them; the image is the node's own base, brought over ssh."""
    node = engine.containers.get(f"orch-{NAME}-alpha")
    image = node.image
    assert image is not None
    archive = b"".join(image.save())
    loaded = subprocess.run(
        shell_command("alpha", ("docker", "load")), input=archive, capture_output=True, timeout=120, check=True
    )
    reference = loaded.stdout.decode().split(": ")[1].strip()
    limits = ("--network", "host", "--cpus", "1", "--memory", "256m", "--shm-size", "64m", "--user", "1000:1000")
    on("alpha", "docker", "run", "--detach", "--name", "inner", "--init", *limits, reference, "sleep", "600")
    assert on("alpha", "docker", "exec", "inner", "id", "-u") == "1000"
    on("alpha", "docker", "rm", "--force", "inner")


def test_a_failed_up_names_the_node_and_leaves_nothing(
    engine: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{NAME}x"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stranger = engine.containers.create(engine.images.list("orch/lab-node")[0], name=f"orch-{name}-beta")
    try:
        assert lab("up", "--nodes", "2", "--name", name) == 6
        assert "beta: could not be created" in capsys.readouterr().err
        assert engine.networks.list(names=[f"orch-{name}"]) == []
        assert engine.volumes.list(filters={"name": f"orch-{name}"}) == []
        assert [found.name for found in engine.containers.list(all=True, filters={"name": f"orch-{name}"})] == [
            stranger.name
        ]
        assert list((tmp_path / "orch").iterdir()) == []
    finally:
        stranger.remove(force=True, v=True)


def test_a_lab_of_another_folder_is_left_alone(
    folder: Path,
    engine: docker.DockerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert lab("down", "--yes") == 0
    assert lab("up", "--name", NAME, "--nodes", "2") == 6
    assert str(folder) in capsys.readouterr().err
    assert len(leftovers(engine)) == 5  # two machines, two disks, one network
