"""SSH host keys: an unknown one is refused until a person has accepted it, a changed one always."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import paramiko
from platformdirs import user_config_path, user_state_path

from orchestrator.nodes.proxy_command import ProxyCommand
from orchestrator.nodes.state_files import open_private
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.reach import Reach


def own_file() -> Path:
    """File in which `orch trust` stores accepted keys."""
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
    """Name of a host as OpenSSH writes it in known_hosts."""
    return address if port == 22 else f"[{address}]:{port}"


def fingerprint(key: paramiko.PKey) -> str:
    """`ssh-ed25519 SHA256:…`, as `ssh-keygen -l` shows it."""
    return f"{key.get_name()} {key.fingerprint}"


class RefuseUnknown(paramiko.MissingHostKeyPolicy):
    """Name the unknown key and say how to accept it."""

    def __init__(self, node: str, *, accept_by: str = "") -> None:
        """`accept_by`: the command that accepts it (default: `orch trust` of the node)."""
        self._node = node
        self._accept_by = accept_by or f"orch trust -n {node}"

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise NodeUnreachableError(
            f"{hostname} shows an unknown host key: {fingerprint(key)}",
            reach=Reach.KEY_UNKNOWN,
            node=self._node,
            hint=f"compare it with the machine's own ({where_to_compare(key)}), then: {self._accept_by}",
        )


def changed_key(
    node: str, host: str, port: int, known: Sequence[paramiko.PKey], shown: paramiko.PKey, *, then: str = ""
) -> NodeUnreachableError:
    """Error for a machine that presents a different key than before: no option of orch accepts it.

    `then`: the next step after the old one is removed (default: `orch trust`).
    """
    entries = dict.fromkeys((entry_name(host, port), host))  # a jump host has a port of its own
    removals = [
        f"ssh-keygen -f {shlex.quote(str(file))} -R {shlex.quote(entry)}"
        for file in known_files()
        for entry in entries
        if paramiko.HostKeys(str(file)).lookup(entry)
    ]
    return NodeUnreachableError(
        f"the host key of {host} has CHANGED: it was {' or '.join(map(fingerprint, known))}, "
        f"it now shows {fingerprint(shown)}",
        reach=Reach.KEY_CHANGED,
        node=node,
        hint="this may be an attack. If the machine was reinstalled or given another key, remove the old one: "
        f"{'; '.join(removals)}; then: {then or f'orch trust -n {node}'}",
    )


EXCHANGE_S = 15.0
"""Timeout of the key exchange once a machine answers: a small machine computes for seconds."""


def offered_key(
    address: str,
    port: int,
    *,
    timeout_s: float = 5.0,
    names: Sequence[str] = (),
    through: paramiko.Channel | ProxyCommand | None = None,
) -> paramiko.PKey:
    """The key that a machine shows, without logging in: one of a type that is on record, where it has one.

    `through`: an open channel to that port, of a jump host, or a command. Raises OSError, EOFError or SSHException
    where no SSH server answers.
    """
    with closing(through or socket.create_connection((address, port), timeout=timeout_s)) as connection:
        transport = paramiko.Transport(connection)  # type: ignore[arg-type]  # a ProxyCommand is enough of a socket
        try:
            security = transport.get_security_options()
            known = [name for key in known_keys(address, port, names) for name in ALGORITHMS.get(key.get_name(), ())]
            preferred = [name for name in known if name in security.key_types]
            security.key_types = tuple(dict.fromkeys((*preferred, *security.key_types)))
            transport.start_client(timeout=EXCHANGE_S)
            return transport.get_remote_server_key()
        finally:
            transport.close()


ALGORITHMS = {
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
    **{name: (name,) for name in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")},
}
"""Signature algorithms by key type."""


def known_keys(address: str, port: int, names: Sequence[str] = ()) -> tuple[paramiko.PKey, ...]:
    """All known keys of the machine, of every type: those of its address, otherwise of the first name that has any."""
    keys = paramiko.HostKeys()
    for file in known_files():
        keys.load(str(file))
    for one in (address, *names):
        recorded = keys.lookup(entry_name(one, port))
        if recorded:
            return tuple(key for key in map(recorded.get, recorded) if key is not None)
    return ()


def known_as(client: paramiko.SSHClient, address: str, port: int, names: Sequence[str]) -> None:
    """Let the keys that are on record under the machine's names count for its address, which is connected to."""
    for key in known_keys(address, port, names):
        client.get_host_keys().add(entry_name(address, port), key.get_name(), key)


def where_to_compare(key: paramiko.PKey) -> str:
    """Command that shows the same fingerprint on the machine itself."""
    kind = key.get_name().removeprefix("ssh-").partition("-")[0]
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


def accept(address: str, port: int, key: paramiko.PKey, names: Sequence[str] = ()) -> Path:
    """Store a key, also under the machine's other names; return the file.

    It is appended in one write, so that existing entries are never lost.
    """
    file = own_file()
    hosts = ",".join(dict.fromkeys(entry_name(one, port) for one in (address, *names)))
    line = f"{hosts} {key.get_name()} {key.get_base64()}\n".encode()
    with open_private(file) as known:
        known.seek(0)
        unfinished = known.read()[-1:] not in (b"", b"\n")  # a last line without a newline
        known.write(b"\n" + line if unfinished else line)
    return file
