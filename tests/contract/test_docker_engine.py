"""Behavior of Docker alone: how far a container is confined, and streams that are silent for long."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import requests

from orchestrator.fleet.runs.secrets import place_secrets, remove_secrets
from orchestrator.nodes.docker_engine import DockerEngine
from orchestrator.nodes.docker_over_ssh import docker_client_over
from orchestrator.nodes.interface import Engine
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.ssh import SshNode
from orchestrator.plan.container import secret_environment, secret_mounts, secrets_folder
from orchestrator.specs.container import Mount
from orchestrator.specs.errors import EngineError
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.secret import Secret
from tests import lan
from tests.contract.base_image import IMAGE
from tests.contract.test_engine import spec

pytestmark = pytest.mark.docker

Ask = Callable[..., str]


@pytest.fixture
def ask(docker_engine: Engine) -> Ask:
    """Function that runs a script inside a container."""

    def message(script: str, **other: object) -> str:
        done = docker_engine.run_once(spec(script, **other))
        return f"{done.stdout}{done.stderr}".strip()

    return message


def test_a_secret_is_a_file_for_its_user_alone_and_stands_nowhere_else(docker_engine: Engine) -> None:
    identity = RunIdentity(run_id=f"secret-{os.getpid()}", user="ana", started_at="")
    folder = secrets_folder(os.getuid(), identity, "alpha")
    (part,) = lan.plan(("alpha",), identity, secrets=(Secret(name="HF_TOKEN"),)).nodes
    node, own = LocalNode("alpha"), spec("cat $HF_TOKEN_FILE; ls -l $HF_TOKEN_FILE; echo x > $HF_TOKEN_FILE")
    container = replace(
        own,
        name=f"orch-secret-{os.getpid()}",
        user=f"{os.getuid()}:{os.getgid()}",
        labels={**own.labels, LABEL_SECRETS: folder},
        mounts=secret_mounts((Secret(name="HF_TOKEN"),), folder),
        environment={**own.environment, **secret_environment((Secret(name="HF_TOKEN"),))},
    )
    place_secrets(node, replace(part, container=container), {"HF_TOKEN": b"hush-hush\n"})
    try:
        id = docker_engine.create(container)
        data = json.dumps(docker.APIClient(version="auto").inspect_container(id))
        docker_engine.remove(id)
        done = docker_engine.run_once(container)
    finally:
        remove_secrets(node, folder)
    value, listed = done.stdout.splitlines()
    assert (value, listed.split()[0]) == ("hush-hush", "-r--------")
    assert "Read-only file system" in done.stderr
    assert "hush-hush" not in data
    assert not Path(folder).parent.exists()


def test_it_runs_as_the_user_that_was_asked_for(ask: Ask) -> None:
    assert ask("id -u; id -g", user="1234:2345").split() == ["1234", "2345"]
    assert ask("id -u") == "1000"


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_it_has_no_capability(ask: Ask, user: str) -> None:
    sets = dict(line.split() for line in ask("grep ^Cap /proc/self/status", user=user).splitlines())
    assert sets.pop("CapAmb:") == sets.pop("CapInh:") == "0" * 16
    assert sets == {"CapPrm:": "0" * 16, "CapEff:": "0" * 16, "CapBnd:": "0" * 16}


def test_it_cannot_gain_privileges(ask: Ask) -> None:
    assert ask("grep NoNewPrivs /proc/self/status").split() == ["NoNewPrivs:", "1"]


def test_its_root_cannot_be_written(ask: Ask) -> None:
    assert "Read-only file system" in ask("touch /new", user="0:0")
    assert "Read-only file system" in ask("touch /bin/new", user="0:0")


def test_tmp_can_be_written_and_run(ask: Ask) -> None:
    script = "cd /tmp && printf '#!/bin/sh\\necho ran\\n' > x && busybox chmod 755 x && ./x; grep ' /tmp ' /proc/mounts"
    ran, mount = ask(script).splitlines()
    assert ran == "ran"
    assert mount.split()[2] == "tmpfs"
    assert {"rw", "nosuid", "nodev"} <= set(mount.split()[3].split(","))
    assert "noexec" not in mount


def test_an_init_is_its_first_process(ask: Ask) -> None:
    first, *words = ask("tr '\\0' ' ' < /proc/1/cmdline").split()
    assert first.rsplit("/")[-1] in ("docker-init", "tini", "init")
    assert "sh" in words


def test_a_mount_is_the_nodes_folder(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from the node")
    tmp_path.chmod(0o777)
    writable = (Mount(source=str(tmp_path), target="/workspace"),)
    assert ask("cat /workspace/in; echo back > /workspace/out", mounts=writable) == "from the node"
    assert (tmp_path / "out").stat().st_uid == 1000
    read_only = (Mount(source=str(tmp_path), target="/workspace", read_only=True),)
    assert "Read-only file system" in ask("touch /workspace/new", mounts=read_only, user="0:0")


def test_its_limits_are_those_of_the_plan(docker_engine: Engine) -> None:
    container = docker_engine.create(spec("true", memory_mib=96, shm_mib=48, cpus=1.5, pids_limit=77))
    client = docker.APIClient()
    try:
        host = client.inspect_container(container)["HostConfig"]
    finally:
        docker_engine.remove(container)
        client.close()
    assert (host["Memory"], host["ShmSize"]) == (96 * 2**20, 48 * 2**20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (1_500_000_000, 77)
    assert (host["RestartPolicy"]["Name"], host["Privileged"]) in (("no", False), ("", False))


def test_what_is_set_aside_is_not_brought_back_with_its_machine(docker_engine: Engine) -> None:
    container = docker_engine.create(spec("exit 3", restart_on_failure=7))
    client = docker.APIClient()
    try:
        before = client.inspect_container(container)["HostConfig"]["RestartPolicy"]
        docker_engine.rename_and_keep(container, "orch-contract-ended")
        after = client.inspect_container(container)["HostConfig"]["RestartPolicy"]
    finally:
        docker_engine.remove(container)
        client.close()
    assert (before["Name"], before["MaximumRetryCount"], after["Name"]) == ("on-failure", 7, "no")


@pytest.mark.parametrize("way", ["here", "over ssh"])
def test_a_silent_container_is_followed_beyond_the_clients_timeout(
    docker_engine: Engine, ssh_node: SshNode, way: str
) -> None:
    assert docker_engine.image(IMAGE)

    def connect() -> docker.APIClient:
        if way == "here":
            return docker.APIClient(version="auto", timeout=3)
        return docker_client_over(ssh_node._transport, timeout_s=3)

    engine = DockerEngine("alpha", connect, explain=lambda: "")
    container = docker_engine.create(spec("echo one; sleep 4; echo two; sleep 4; exit 3"))
    try:
        docker_engine.start(container)
        assert [line.text for line in engine.logs(container, follow=True)] == ["one", "two"]
        assert engine.wait(container).exit_code == 3
    finally:
        docker_engine.remove(container)
        engine.close()


class Losing(docker.APIClient):  # type: ignore[misc]  # the SDK has no types
    """A client whose connection breaks once after each request named in `lost`: done, but its answer never arrives."""

    lost: set[str]

    def _answered(self, name: str, answer: object) -> object:
        if name in self.lost:
            self.lost.remove(name)
            raise requests.exceptions.ConnectionError("the connection broke")
        return answer

    def create_container_from_config(self, *args: object, **options: object) -> object:
        return self._answered("create", super().create_container_from_config(*args, **options))

    def start(self, *args: object, **options: object) -> object:
        return self._answered("start", super().start(*args, **options))

    def remove_container(self, *args: object, **options: object) -> object:
        return self._answered("remove", super().remove_container(*args, **options))


@pytest.mark.parametrize(
    ("lost", "ends_well"),
    [({"create"}, True), ({"remove"}, True), ({"create", "remove"}, True), ({"start", "remove"}, False)],
    ids=lambda value: " and ".join(sorted(value)) if isinstance(value, set) else "",
)
def test_a_container_whose_answer_was_lost_is_not_left_behind(
    docker_engine: Engine, lost: set[str], ends_well: bool
) -> None:
    assert docker_engine.image(IMAGE)
    remaining = set(lost)

    def connect() -> docker.APIClient:
        client = Losing(version="auto")
        client.lost = remaining
        return client

    engine, wanted = DockerEngine("alpha", connect, explain=lambda: ""), spec("echo done")
    try:
        if ends_well:
            assert engine.run_once(wanted).stdout == "done\n"
        else:
            with pytest.raises(EngineError, match="the connection broke"):
                engine.run_once(wanted)
        assert (remaining, engine.container(wanted.name)) == (set(), None)
        assert engine.run_once(wanted).stdout == "done\n", "its name is free again"
    finally:
        engine.close()
