"""One simulated machine: a container with its own sshd and its own Docker Engine."""

from __future__ import annotations

import io
import json
import socket
import tarfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import docker
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import EndpointConfig

from orchestrator.lab.host import labels, resource_name
from orchestrator.lab.inventory import MachineSize
from orchestrator.lab.network import UNSHAPED, cut_commands, heal_commands, is_cut_command, shape_command
from orchestrator.lab.state import LabNode
from orchestrator.specs.errors import ConflictError, DeadlineError, EngineError, OrchError, UsageError

CAPABILITIES = ("NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE")
"""Capabilities in addition to Docker's default set: network rules, mounts, and (measured) `docker exec` into processes
of others."""
SECURITY = ("seccomp=unconfined", "apparmor=unconfined", "label=disable")
"""The default profiles forbid the mounts that the engine inside makes for its containers."""

OPEN_PATHS: dict[str, list[str]] = {"MaskedPaths": [], "ReadonlyPaths": []}
"""Equivalent of `systempaths=unconfined`: the engine inside sets kernel parameters of its network."""

_UID = 1000
_LOG_LINES = 8
_COMMAND_TIMEOUT_S = 20.0
_BANNER_TIMEOUT_S = 1.0
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """Status of a simulated machine."""

    name: str
    address: str
    state: str
    """`up`, `cut` (off the network), `down` (powered off) or `missing`."""
    engine: str = ""
    """Version of its Docker Engine; empty where that does not answer."""
    containers: int = 0
    """Running inside."""
    link: str = UNSHAPED


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """An ed25519 key in OpenSSH's formats."""

    private: str
    public: str


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Key of the user who may log in on a node, and the node's host key."""

    user_key: KeyPair
    host_key: KeyPair


@dataclass(frozen=True, kw_only=True)
class MachineFile:
    """A file that a machine of the lab gets before its first start."""

    path: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class MachineExtras:
    """Additions to a machine of the lab."""

    binds: tuple[str, ...] = ()
    """Volumes and folders of this computer, `SOURCE:TARGET:MODE`."""
    hosts: tuple[tuple[str, str], ...] = ()
    """Names of machines with their addresses."""
    files: tuple[MachineFile, ...] = ()


NO_EXTRAS = MachineExtras()


class SimulatedNode:
    """A node of a lab on this computer's engine. Every refusal is an `EngineError` with the node's name."""

    def __init__(self, client: docker.DockerClient, lab: str, node: LabNode) -> None:
        self._client = client
        self._lab = lab
        self._node = node

    @property
    def name(self) -> str:
        return self._node.name

    def create(self, image: str, identity: Identity, size: MachineSize, extras: MachineExtras = NO_EXTRAS) -> None:
        """Make the machine, switched off, with its keys and a machine id of its own."""
        name, network = resource_name(self._lab, self.name), resource_name(self._lab)
        marks = labels(self._lab, self.name)
        try:
            self._client.volumes.create(name, labels=marks)
            container = self._client.api.create_container(
                image,
                name=name,
                hostname=self.name,
                labels=marks,
                host_config=self._privileges(size, extras),
                networking_config={
                    "EndpointsConfig": {network: EndpointConfig("1.41", ipv4_address=self._node.address)}
                },
            )
            self._client.api.put_archive(container["Id"], "/", _archive(identity, extras))
        except APIError as error:
            raise self._refused("be created", error) from error

    def _privileges(self, size: MachineSize, extras: MachineExtras) -> dict[str, Any]:
        """Privileges that a container needs to act as a machine. With SYS_ADMIN, all devices, no seccomp and no
        AppArmor, root in it is close to root on this computer, as with `--privileged`: a lab is for trusted code."""
        name = resource_name(self._lab, self.name)
        config = self._client.api.create_host_config(
            init=True,
            network_mode=resource_name(self._lab),
            cap_add=list(CAPABILITIES),
            security_opt=list(SECURITY),
            device_cgroup_rules=["a *:* rwm"],
            cgroupns="private",
            tmpfs={"/run": "rw,nosuid,nodev,mode=755"},
            binds=[f"{name}:/var/lib/docker:rw", *extras.binds],
            extra_hosts=dict(extras.hosts),
            nano_cpus=int(size.cpus * 1e9) if size.cpus else None,
            mem_limit=size.memory_mib * _MIB if size.memory_mib else None,
        )
        return {**config, **OPEN_PATHS}

    def switch_on(self) -> None:
        """Boot; its link is shaped before anything runs on it."""
        try:
            self._container().start()
        except APIError as error:
            raise self._refused("be started", error) from error
        if self._node.link != UNSHAPED:
            self.shape(self._node.link)

    def switch_off(self) -> None:
        """A power cut: everything on it dies at once, its disk stays."""
        self._running().kill()

    def is_on(self) -> bool:
        return bool(self._container().status == "running")

    def is_ready(self) -> bool:
        """True when its sshd greets and its engine answers; an error where that will never come."""
        container = self._container()
        if container.status != "running":
            raise self._failed("stopped while it was booting")
        if not _greets(self._node.address):
            return False
        if not self._node.has_engine:
            return True
        if self._execute(container, ("docker", "info"))[0] == 0:
            return True
        if self._execute(container, ("pidof", "dockerd"))[0] != 0:
            raise self._failed("has no Docker Engine: it ended while it was starting")
        return False

    def cut(self) -> None:
        """Pull its network cable."""
        if not self._is_cut():
            self._all(cut_commands(), "be cut off")

    def heal(self) -> None:
        """Plug its network cable in again."""
        if self._is_cut():
            self._all(heal_commands(), "be healed")

    def shape(self, link: str) -> None:
        """Give its link another speed."""
        if link == UNSHAPED:
            self._execute(self._running(), shape_command(link))  # refused where nothing shapes it: as wanted
        else:
            self._all([shape_command(link)], f"get a link of {link}")

    def look(self) -> NodeStatus:
        """Current status."""
        status = NodeStatus(name=self.name, address=self._node.address, state="missing", link=self._node.link)
        try:
            container = self._client.containers.get(resource_name(self._lab, self.name))
        except NotFound:
            return status
        if container.status != "running":
            return replace(status, state="down")
        state = "cut" if self._is_cut() else "up"
        exit_code, text = self._execute(container, ("docker", "info", "--format", "{{json .}}"))
        info = json.loads(text or "{}") if exit_code == 0 else {}  # a busy engine may lose the output of an exec
        return replace(
            status,
            state=state,
            engine=info.get("ServerVersion", ""),
            containers=info.get("ContainersRunning", 0),
        )

    def last_lines(self) -> str:
        """Last lines of its log, indented for a message."""
        text = b"".join(self._container().logs(tail=_LOG_LINES, stream=True)).decode(errors="replace").strip()
        return "\n".join(f"  {line}" for line in text.splitlines())

    def _container(self) -> Container:
        try:
            return self._client.containers.get(resource_name(self._lab, self.name))
        except NotFound as error:
            raise EngineError("its container is gone", node=self.name, hint="orch lab down, then up") from error

    def _running(self) -> Container:
        container = self._container()
        if container.status != "running":
            raise UsageError("is powered off", node=self.name, hint=f"orch lab start {self.name}")
        return container

    def _is_cut(self) -> bool:
        return self._execute(self._running(), is_cut_command())[0] == 0

    def _all(self, commands: list[tuple[str, ...]] | tuple[tuple[str, ...], ...], what: str) -> None:
        container = self._running()
        for command in commands:
            exit_code, text = self._execute(container, command)
            if exit_code != 0:
                raise EngineError(f"could not {what}: {command[0]} said: {text.strip()}", node=self.name)

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Exit code and text of a command on the running machine, run as root."""
        return self._execute(self._running(), command)

    def _execute(self, container: Container, command: Sequence[str]) -> tuple[int, str]:
        """Exit code and text (its stdout; its stderr where it failed) of a command inside, run as root."""

        def run() -> tuple[int, str]:
            api = self._client.api
            execution = api.exec_create(container.id, list(command))["Id"]
            stdout, stderr = api.exec_start(execution, demux=True)
            exit_code = int(api.exec_inspect(execution)["ExitCode"])
            return exit_code, ((stdout if exit_code == 0 else stderr or stdout) or b"").decode(errors="replace")

        return call_with_deadline(run, timeout_s=_COMMAND_TIMEOUT_S, what=f"`{command[0]}`", node=self.name)

    def _failed(self, what: str) -> EngineError:
        return EngineError(
            f"{what}. Its last lines:\n{self.last_lines()}",
            node=self.name,
            hint="without containers: orch lab up --engine process",
        )

    def _refused(self, what: str, error: APIError) -> OrchError:
        message = f"could not {what}: {error.explanation or error}"
        if error.status_code == HTTPStatus.CONFLICT:
            return ConflictError(message, node=self.name, hint="take another --name")
        if error.status_code == HTTPStatus.BAD_REQUEST:  # what was asked for, not what the engine may do
            return EngineError(message, node=self.name)
        needs = f"a node needs {', '.join(CAPABILITIES)}, cgroups of its own and no seccomp profile"
        return EngineError(
            message, node=self.name, hint=f"{needs}; where the engine forbids that: orch lab up --engine process"
        )


def _greets(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=_BANNER_TIMEOUT_S) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _archive(identity: Identity, extras: MachineExtras) -> bytes:
    """Files of a machine before its first start, as a tar archive."""
    files = (
        ("etc/ssh/ssh_host_ed25519_key", identity.host_key.private, 0o600, 0),
        ("etc/ssh/ssh_host_ed25519_key.pub", identity.host_key.public + "\n", 0o644, 0),
        ("etc/machine-id", uuid.uuid4().hex + "\n", 0o444, 0),
        ("home/orch/.ssh/authorized_keys", identity.user_key.public + "\n", 0o600, _UID),
        *((file.path, file.text, file.mode, 0) for file in extras.files),
    )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path, text, mode, owner in files:
            header = tarfile.TarInfo(path)
            header.mode, header.uid, header.gid, header.size = mode, owner, owner, len(text)
            archive.addfile(header, io.BytesIO(text.encode()))
    return stream.getvalue()


Result = TypeVar("Result")


def call_with_deadline(call: Callable[[], Result], *, timeout_s: float, what: str, node: str) -> Result:
    """Result or exception of the call; `DeadlineError` after `timeout_s`, its thread ending with the process.

    Seen with engine 20.10: a command that the kernel kills while it starts (out of memory) never closes its stream.
    """
    done = SimpleQueue[tuple[list[Result], Exception | None]]()

    def work() -> None:
        try:
            done.put(([call()], None))
        except Exception as error:
            done.put(([], error))

    Thread(target=work, daemon=True).start()
    try:
        result, error = done.get(timeout=timeout_s)
    except Empty:
        raise DeadlineError(f"{what} did not end within {timeout_s:g} s", node=node) from None
    if error:
        raise error
    return result[0]


def new_key_pair(comment: str) -> KeyPair:
    """A fresh key without a passphrase."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private=private.decode(), public=f"{public.decode()} {comment}")


def known_hosts_line(address: str, key: KeyPair) -> str:
    """The line that pins a node's host key."""
    kind, value, *_ = key.public.split()
    return f"{address} {kind} {value}\n"
