"""A private sshd on a free port of 127.0.0.1, for one test module: no machine of the user's is asked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

import paramiko
import pytest

from orchestrator.lab.node import KeyPair, new_key_pair
from orchestrator.nodes.login_shell import FIRST
from orchestrator.specs.inventory import NodeSpec

ADDRESS = "127.0.0.1"
PORTS = 3
"""Free ports that are tried: another process may take one before sshd does."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Address, host key, and accepted key of a server."""

    port: int
    host_key: KeyPair
    identity: Path

    def spec(self, **other: object) -> NodeSpec:
        fields = {"name": "alpha", "address": ADDRESS, "port": self.port, "user": getuser()}
        return NodeSpec.model_validate({**fields, "identity": str(self.identity), **other})


@contextmanager
def sshd(folder: Path, *, port: int | None = None, path: str = "", shell: str = "") -> Iterator[Server]:
    """Start it with a host key of its own and stop it at the end. `path` comes before the PATH of its commands;
    `shell`: the command line by which another login shell runs them."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        pytest.fail("there is no sshd on this computer: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd run by root insists on it
    folder.mkdir(parents=True, exist_ok=True)
    host_key, user_key = new_key_pair("host"), new_key_pair("user")
    _write(folder / "host_key", host_key.private)
    _write(folder / "authorized_keys", user_key.public)
    _write(folder / "id", user_key.private)
    _write(folder / "id.pub", user_key.public)
    errors = folder / "log"
    for wanted in (port,) if port else (free_port() for _ in range(PORTS)):
        _write(folder / "config", _config(folder, wanted, f"{path}:{os.environ['PATH']}".strip(":"), shell))
        with errors.open("wb") as log:
            process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=log)
        if _listens(process, errors):
            break
    else:
        pytest.fail(f"sshd would not start: {errors.read_text()}")
    try:
        yield Server(port=wanted, host_key=host_key, identity=folder / "id")
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as server:
        return int(server.getsockname()[1])


def _config(folder: Path, port: int, path: str, shell: str) -> str:
    return f"""\
Port {port}
ListenAddress {ADDRESS}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH={path}
{f"ForceCommand {shell}" if shell else ""}
"""


def command_of(channel: paramiko.Channel) -> list[str]:
    """Play the `sh` of a login shell on a server of a test, and return the words of the command that it is sent."""

    def line() -> bytes:
        """Byte by byte, as `read` does: what follows is the command's own."""
        text = b""
        while not text.endswith(b"\n") and (byte := channel.recv(1)):
            text += byte
        return text

    if line() != FIRST:
        raise EOFError  # the client has hung up
    channel.sendall(b"orch-sh-ready\n")
    channel.sendall_stderr(b"orch-sh-ready\n")
    return shlex.split(re.sub(rb"\\0([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line()[1:-1]).decode())


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def _listens(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until its log shows that it listens. False: its port was taken meanwhile; it fails for any other reason."""
    while "Server listening" not in log.read_text():
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        if "Address already in use" not in log.read_text():
            pytest.fail(f"sshd would not start: {log.read_text()}")
        return False
    return True
