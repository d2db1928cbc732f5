"""A machine over SSH: one connection for its commands, its files and its Docker Engine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import paramiko

from orchestrator.nodes.archive import CHUNK, TarError, pack, unpack
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, CommandOutput, Completed
from orchestrator.nodes.login_shell import FIRST, START, STARTUP_FILES, Preface, second_line, why_no_shell
from orchestrator.nodes.ssh_config import login_of
from orchestrator.nodes.ssh_connection import close, connect, is_alive, resolve
from orchestrator.specs.errors import CommandFailedError, DeadlineError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

if TYPE_CHECKING:
    import docker

    from orchestrator.nodes.docker_engine import DockerEngine

STARTUP_S = 20.0
"""Time that the startup files of a login shell may take before a command that reads stdin is given up."""


@dataclass
class _Ended:
    """Result of a command."""

    errors: CommandOutput
    code: int = -1
    refused: CommandFailedError | None = None
    preface: Preface = field(default_factory=Preface)
    """Beginning of stdout."""
    preface_of_errors: Preface = field(default_factory=Preface)


class SshNode:
    """`Node` over SSH. Connects at the first use, once, whichever thread comes first."""

    def __init__(self, spec: NodeSpec, *, password: str | None = None) -> None:
        """Prepare a connection. `password` is tried in place of keys: it stays in memory, for the login that brings
        the key."""
        self._spec = spec
        self._password = password
        self._lock = Lock()
        self._connection: Any = None  # fabric ships no types

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def address(self) -> str:
        return resolve(login_of(self._spec).spec)

    @cached_property
    def engine(self) -> DockerEngine:
        from orchestrator.nodes.docker_engine import DockerEngine  # with Docker's SDK, which a login node needs not

        return DockerEngine(self.name, self._docker_client, explain=self._why_no_engine)

    def open(self) -> None:
        self._transport()

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        out, ended = CommandOutput(argv, self.name), self._ended(argv)
        for chunk in self._talk(argv, stdin, ended, timeout_s):
            out.add(chunk)
        return self._completed(argv, ended, out.text)

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        ended = self._ended(argv)
        yield from self._talk(argv, stdin, ended, timeout_s)
        self._completed(argv, ended).check(f"reading from {argv[0]}")

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        folder, name = (target, ".") if source.is_dir() else os.path.split(target)
        self.run(["mkdir", "-p", folder]).check(f"making {folder}")
        unpacking = self.run(
            ["tar", "-x", "-p", "-C", folder], stdin=pack(source, name=name, only=only), timeout_s=TRANSFER_TIMEOUT_S
        )
        unpacking.check(f"copying {source} to {target}", hint="is the disk full? df -h")

    def get(self, source: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.run(["test", "-d", source]).exit_code == 0:
            self._fetch(["tar", "-c", "-C", source, "."], target)
            return
        folder, name = os.path.split(source)
        with TemporaryDirectory(dir=target.parent) as aside:
            self._fetch(["tar", "-c", "-C", folder or ".", "--", name], Path(aside))
            try:
                (Path(aside) / name).replace(target)
            except OSError as error:
                raise CommandFailedError(f"copying {source} to {target} failed: {error}", node=self.name) from error

    def _fetch(self, argv: Sequence[str], target: Path) -> None:
        """Unpack the stream that a tar command on the node writes."""
        read, write = os.pipe()
        outcome: SimpleQueue[_Ended | BaseException] = SimpleQueue()

        def send() -> None:
            ended = self._ended(argv)
            with os.fdopen(write, "wb") as writing:
                try:
                    for chunk in self._talk(argv, b"", ended, TRANSFER_TIMEOUT_S):
                        writing.write(chunk)
                    outcome.put(ended)
                except BaseException as error:  # otherwise the queue would stay empty
                    outcome.put(error)

        Thread(target=send, daemon=True).start()
        refused: Exception | None = None
        with os.fdopen(read, "rb") as reading:
            try:
                unpack(reading, target)
            except (TarError, OSError) as error:
                refused = error
            while reading.read(CHUNK):  # what is left, so that the command can end
                pass
        ended = outcome.get()
        if isinstance(ended, BaseException):
            raise ended
        completed = self._completed(argv, ended)
        completed.check(f"copying {argv[-1]}")  # a command that failed explains a broken archive
        if refused:
            raise CommandFailedError(f"what it sent for {argv[-1]} was refused: {refused}", node=self.name) from refused

    def close(self) -> None:
        if "engine" in self.__dict__:
            self.engine.close()
        with self._lock:
            if self._connection is not None:
                close(self._connection)
                self._connection = None

    def _ended(self, argv: Sequence[str]) -> _Ended:
        return _Ended(errors=CommandOutput(argv, self.name))

    def _completed(self, argv: Sequence[str], ended: _Ended, out: str = "") -> Completed:
        return Completed(node=self.name, argv=tuple(argv), exit_code=ended.code, stdout=out, stderr=ended.errors.text)

    def _talk(
        self, argv: Sequence[str], stdin: bytes | Iterable[bytes], ended: _Ended, timeout_s: float
    ) -> Iterator[bytes]:
        """Stream stdout; at its end, `ended` holds the exit code and stderr."""
        deadline = time.monotonic() + timeout_s
        channel = self._open_session(argv[0])
        try:
            channel.exec_command(START)
            helpers = [
                Thread(target=_feed, args=(channel, argv, stdin, ended), daemon=True),
                Thread(target=_drain, args=(channel, ended), daemon=True),
            ]
            for helper in helpers:
                helper.start()
            yield from filter(None, map(ended.preface.strip, _chunks(channel, deadline)))
            helpers[1].join(max(0.0, deadline - time.monotonic()))
            if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            ended.code = channel.recv_exit_status()
        except TimeoutError:
            waits = (
                "" if ended.preface.seen else f"its login shell had started no sh: does one of {STARTUP_FILES} wait?"
            )
            raise DeadlineError(
                f"{argv[0]} had not ended after {timeout_s:.0f} s", node=self.name, hint=waits
            ) from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise NodeUnreachableError(f"the connection broke during {argv[0]}: {error}", node=self.name) from error
        finally:
            ended.preface.ended.set()
            channel.close()
        if ended.refused:
            ended.refused.node = ended.refused.node or self.name
            raise ended.refused
        if ended.code < 0:
            raise NodeUnreachableError(f"the connection broke during {argv[0]}", node=self.name)
        if not ended.preface.seen:
            last_line = ended.preface.last_line or ended.preface_of_errors.last_line
            why, hint = why_no_shell(ended.code, last_line, login_of(self._spec).spec.user or "USER")
            raise NodeUnreachableError(why, reach=Reach.SHELL, node=self.name, hint=hint)

    def _open_session(self, doing: str) -> paramiko.Channel:
        """A channel for one command. Nothing has run yet, so a connection found broken here is replaced, once."""
        for reconnects in (True, False):
            transport = self._transport()
            try:
                return transport.open_session()
            except (OSError, EOFError, paramiko.SSHException) as error:
                if reconnects and not transport.is_active():
                    continue
                raise NodeUnreachableError(f"the connection broke before {doing}: {error}", node=self.name) from error
        raise AssertionError("the second attempt returns or raises")

    def _transport(self) -> paramiko.Transport:
        """Transport of the connection, reconnected if broken: the machine may have been restarted."""
        with self._lock:
            if self._connection is not None and not is_alive(self._connection):
                close(self._connection)
                self._connection = None
            if self._connection is None:
                self._connection = connect(self._spec, password=self._password)
            transport: paramiko.Transport = self._connection.client.get_transport()
            return transport

    def _docker_client(self) -> docker.APIClient:
        from orchestrator.nodes.docker_over_ssh import docker_client_over

        return docker_client_over(self._transport)

    def _why_no_engine(self) -> str:
        if "podman" in self.run(["docker", "--version"], timeout_s=10).stdout.lower():
            return "its program docker is Podman's; orch runs ranks in Docker Engine: orch explain engine.podman"
        answer = self.run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=10)
        if answer.exit_code == 127:  # as of a shell
            return "Docker is not installed"
        return answer.stderr.strip().rsplit("\n", 1)[-1] if answer.exit_code else ""


def _feed(channel: paramiko.Channel, argv: Sequence[str], stdin: bytes | Iterable[bytes], ended: _Ended) -> None:
    """Send the command, then its stdin: that only once `sh` has started, as no other program is to read it."""
    try:
        command = second_line(argv)
        if stdin == b"":
            command = FIRST + command  # in one packet
        else:
            channel.sendall(FIRST)
            if not ended.preface.ended.wait(STARTUP_S):
                ended.refused = CommandFailedError(
                    f"its login shell had started no sh after {STARTUP_S:.0f} s",
                    hint=f"does one of {STARTUP_FILES} wait?",
                )
            if ended.refused or not ended.preface.seen:
                end_input(channel)  # `sh`, should it start yet, finds no command
                return
        channel.sendall(command)
        for chunk in (stdin,) if isinstance(stdin, bytes) else stdin:
            channel.sendall(chunk)
        end_input(channel)
    except (OSError, EOFError, paramiko.SSHException):
        return  # the command or the connection ended before all of it was read; whoever reads its output reports that


def end_input(channel: paramiko.Channel) -> None:
    """Send the end of a command's input. `shutdown_write` releases the channel's lock before it sends: if the command
    ends in that moment, paramiko's thread closes the channel first, and sshd ends the whole connection for an EOF on a
    channel that it no longer knows (paramiko 5.1; seen once in some thousand commands on a busy machine)."""
    internals: Any = channel
    with internals.lock:
        if (message := internals._send_eof()) is not None:
            internals.transport._send_user_message(message)


def _drain(channel: paramiko.Channel, ended: _Ended) -> None:
    try:
        while chunk := channel.recv_stderr(CHUNK):
            ended.errors.add(ended.preface_of_errors.strip(chunk))
    except OSError:
        return
    except CommandFailedError as error:
        ended.refused = error
        channel.close()  # ends the read of its stdout


def _chunks(channel: paramiko.Channel, deadline: float) -> Iterator[bytes]:
    while True:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        if not (chunk := channel.recv(CHUNK)):
            return
        yield chunk
