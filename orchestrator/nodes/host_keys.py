"""SSH host keys: an unknown one is refused until a person has accepted it, a changed one always."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import paramiko
from platformdirs import user_config_path, user_state_path

from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.reach import Reach


def own_file() -> Path:
    """Where `orch trust` keeps what was accepted."""
    return user_config_path("orch") / "known_hosts"


def known_files() -> list[Path]:
    """Every file of known hosts there is: the user's, ours, the system's, and the lab's while one is up."""
    files = [
        Path("~/.ssh/known_hosts").expanduser(),
        Path("/etc/ssh/ssh_known_hosts"),
        own_file(),
        user_state_path("orch") / "lab" / "known_hosts",
    ]
    return [file for file in files if file.is_file()]


def entry_name(address: str, port: int) -> str:
    """How OpenSSH writes a host in known_hosts."""
    return address if port == 22 else f"[{address}]:{port}"


def fingerprint(key: paramiko.PKey) -> str:
    """`ssh-ed25519 SHA256:…`, as `ssh-keygen -l` shows it."""
    return f"{key.get_name()} {key.fingerprint}"


class RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Name the unknown key and say how to accept it."""

    def __init__(self, node: str) -> None:
        self._node = node

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise NodeUnreachableError(
            f"{hostname} shows an unknown host key: {fingerprint(key)}",
            reach=Reach.KEY_UNKNOWN,
            node=self._node,
            hint=f"compare it with the machine's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), "
            f"then: orch trust {self._node}",
        )


def changed_key(node: str, port: int, error: paramiko.BadHostKeyException) -> NodeUnreachableError:
    """The machine shows another key than it did: no option of ours goes past this."""
    entries = dict.fromkeys((entry_name(error.hostname, port), error.hostname))  # a jump host has a port of its own
    removals = [
        f"ssh-keygen -f {shlex.quote(str(file))} -R {shlex.quote(entry)}"
        for file in known_files()
        for entry in entries
        if paramiko.HostKeys(str(file)).lookup(entry)
    ]
    return NodeUnreachableError(
        f"the host key of {error.hostname} has CHANGED: it was {fingerprint(error.expected_key)}, "
        f"it now shows {fingerprint(error.key)}",
        reach=Reach.KEY_CHANGED,
        node=node,
        hint="somebody may be in between. If the machine was installed anew, remove its old key: "
        f"{'; '.join(removals)}; then: orch trust {node}",
    )


def offered_key(address: str, port: int, *, timeout_s: float = 5.0) -> paramiko.PKey:
    """The key that a machine shows, without logging in."""
    with socket.create_connection((address, port), timeout=timeout_s) as connection:
        transport = paramiko.Transport(connection)
        try:
            transport.start_client(timeout=timeout_s)
            return transport.get_remote_server_key()
        finally:
            transport.close()


def known_key(address: str, port: int, kind: str) -> paramiko.PKey | None:
    """The key of this kind that is on record for the machine."""
    keys = paramiko.HostKeys()
    for file in known_files():
        keys.load(str(file))
    recorded = keys.lookup(entry_name(address, port))
    return recorded.get(kind) if recorded else None


def accept(address: str, port: int, key: paramiko.PKey) -> Path:
    """Put a key on record; the file it went to. Appended in one write, so that what is there is never lost."""
    file = own_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = f"{entry_name(address, port)} {key.get_name()} {key.get_base64()}\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return file
