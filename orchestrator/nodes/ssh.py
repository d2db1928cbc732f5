"""A machine over SSH: one connection for its commands, its files and its Docker Engine."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from getpass import getuser
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import fabric
import paramiko

from orchestrator.nodes import host_keys
from orchestrator.nodes.archive import CHUNK, TarError, pack, unpack
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, CommandOutput, Completed, resolved
from orchestrator.nodes.login_shell import FIRST, START, STARTUP_FILES, Preface, second_line, why_no_shell
from orchestrator.nodes.proxy_command import CONNECT_S, ProxyCommand
from orchestrator.nodes.ssh_config import Login, SshSettings, login_of, settings_of_hop
from orchestrator.nodes.ssh_login import (
    REFUSALS,
    Attempt,
    Keys,
    drop_missing,
    keys_for,
    plain,
    refusal,
    require_identity,
)
from orchestrator.specs.errors import CommandFailedError, ConfigError, DeadlineError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

if TYPE_CHECKING:
    import docker

    from orchestrator.nodes.docker_engine import DockerEngine

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 15
STARTUP_S = 20.0
"""Time that the startup files of a login shell may take before a command that reads stdin is given up."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
"""Its threads log broken connections with tracebacks, which Python prints without a handler. We raise errors."""


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
        """With `password`, it is tried in place of keys: kept in memory alone, for the login that brings the key."""
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

    def stream(self, argv: Sequence[str], *, timeout_s: float = TRANSFER_TIMEOUT_S) -> Iterator[bytes]:
        ended = self._ended(argv)
        yield from self._talk(argv, b"", ended, timeout_s)
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
                _close(self._connection)
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
            if self._connection is not None and not _is_alive(self._connection):
                _close(self._connection)
                self._connection = None
            if self._connection is None:
                self._connection = self._connect()
            transport: paramiko.Transport = self._connection.client.get_transport()
            return transport

    def _connect(self) -> Any:
        login = login_of(self._spec)
        spec, command = login.spec, login.proxy_command
        host = _Host(
            address=spec.address if command else resolve(spec),  # the command resolves it
            user=spec.user,
            port=spec.port,
            identities=login.identities,
            names=login.key_names,
            proxy_command=command,
            asked=self._spec.address,
        )
        connection = _connection(host, node=spec.name, gateway=_gateway(login, spec.name))
        if self._password is not None:
            connection.connect_kwargs.pop("key_filename", None)
            connection.connect_kwargs |= {"password": self._password, "look_for_keys": False, "allow_agent": False}
        require_identity(spec, connection.user)
        _open(connection, spec, host)
        connection.client.get_transport().set_keepalive(KEEPALIVE_S)
        return connection

    def _docker_client(self) -> docker.APIClient:
        from orchestrator.nodes.docker_over_ssh import docker_client_over

        return docker_client_over(self._transport)

    def _why_no_engine(self) -> str:
        if "podman" in self.run(["docker", "--version"], timeout_s=10).stdout.lower():
            return "its program docker is Podman's; orch runs ranks in Docker Engine: orch explain engine.podman"
        answer = self.run(["docker", "version", "--format", "{{.Server.Version}}"], timeout_s=10)
        return answer.stderr.strip().rsplit("\n", 1)[-1] if answer.exit_code else ""


def resolve(spec: NodeSpec) -> str:
    """The node's IPv4 address."""
    return resolved(spec.address, node=spec.name)


def hold_to_known_keys(client: paramiko.SSHClient, node: str, *, accept_by: str = "") -> None:
    """Check host keys. Fabric alone would accept any, a changed one too (fabric/fabric#2071)."""
    for file in host_keys.known_files():
        client.load_system_host_keys(str(file))
    client.set_missing_host_key_policy(host_keys.RefuseUnknown(node, accept_by=accept_by))


@dataclass(frozen=True, kw_only=True)
class _Host:
    """An address to log in to."""

    address: str
    user: str | None
    port: int
    identities: Sequence[str]
    names: Sequence[str]
    """Its names in files of known hosts, beside the address."""
    accept_by: str = ""
    """Command that accepts its host key (default: `orch trust`)."""
    proxy_command: str = ""
    asked: str = ""
    """The host as `ssh` is asked for it: its configuration may know it by that name alone."""


def _connection(host: _Host, *, node: str, gateway: Any) -> Any:
    """A connection that is not open yet. Fabric reads no SSH configuration of its own: `ssh -G` was asked."""
    keys: dict[str, Any] = {"key_filename": [str(Path(one).expanduser()) for one in host.identities]}
    keys = keys if host.identities else {}
    patience = CONNECT_S if host.proxy_command else CONNECT_TIMEOUT_S
    connection = fabric.Connection(
        host.address,
        user=host.user,
        port=host.port,
        config=fabric.Config(ssh_config=paramiko.SSHConfig()),
        connect_timeout=patience,
        gateway=gateway,
        connect_kwargs={**keys, "banner_timeout": patience, "auth_timeout": 2 * patience},
    )
    hold_to_known_keys(connection.client, node, accept_by=host.accept_by)
    host_keys.known_as(connection.client, host.address, host.port, host.names)
    return connection


def _open(connection: Any, spec: NodeSpec, host: _Host) -> None:
    """Connect and log in. NodeUnreachableError says why it could not."""
    drop_missing(connection.connect_kwargs)
    began = time.monotonic()
    proxy = _proxy(spec, host.proxy_command)
    try:
        if proxy:
            connection.connect_kwargs["sock"] = proxy
        connection.open()
    except REFUSALS as error:
        transport = connection.client.get_transport()
        attempt = Attempt(
            spec=spec,
            user=connection.user,
            error=error,
            waited_s=time.monotonic() - began,
            keys=keys_for(connection.connect_kwargs),
            at_login=bool(transport and transport.session_id and transport.is_active()),
            accept_by=host.accept_by,
        )
        connection.client.close()  # with its connection to the user's ssh-agent, which Fabric leaves open
        raise _refusal(attempt, proxy, host.asked) from error
    except NodeUnreachableError:  # its host key is unknown
        if proxy:
            proxy.close()
        raise


def _proxy(spec: NodeSpec, command: str) -> ProxyCommand | None:
    try:
        return ProxyCommand(command) if command else None
    except OSError as error:
        raise NodeUnreachableError(
            f"the ProxyCommand of your SSH configuration cannot be run: {error.strerror}",
            reach=Reach.PROXY_COMMAND,
            node=spec.name,
            hint="echo $SHELL   # the program that runs it",
        ) from error


def _refusal(attempt: Attempt, proxy: ProxyCommand | None, asked: str) -> NodeUnreachableError:
    """Error to raise, in which a ProxyCommand that failed explains itself. Ends that command."""
    if proxy is None:
        return refusal(attempt)
    why = proxy.why_ended()
    proxy.close()
    if attempt.at_login or isinstance(attempt.error, paramiko.BadHostKeyException):
        return refusal(attempt)
    late = attempt.waited_s >= CONNECT_S
    why = why or (f"no answer in {attempt.waited_s:.0f} s" if late else plain(attempt.error))
    return NodeUnreachableError(
        f"the ProxyCommand of your SSH configuration did not lead to {attempt.place}: {why}",
        reach=Reach.PROXY_COMMAND,
        node=attempt.spec.name,
        hint=f"run it as ssh does: ssh -v -p {attempt.spec.port} {attempt.user}@{asked} true",
    )


def _close(connection: Any) -> None:
    """Close a connection with all that it goes through."""
    connection.close()
    if connection.gateway:
        _close(connection.gateway)
    if proxy := connection.connect_kwargs.get("sock"):
        proxy.close()


def shown_key(spec: NodeSpec, *, timeout_s: float) -> tuple[Login, str, paramiko.PKey]:
    """How to log in to a node, its address, and the host key that it shows, also behind jump hosts and commands."""
    login = login_of(spec)
    to = login.spec
    address = to.address if login.proxy_command else resolve(to)
    gateway = _gateway(login, spec.name)
    proxy = _proxy(to, login.proxy_command)
    through: Any = proxy
    try:
        if gateway:
            through = gateway.transport.open_channel("direct-tcpip", (address, to.port), ("", 0), timeout=timeout_s)
        patience = CONNECT_S if proxy else timeout_s
        key = host_keys.offered_key(address, to.port, timeout_s=patience, names=login.key_names, through=through)
    except REFUSALS as error:
        no_keys = Keys(files=(), in_agent=frozenset())  # no login takes place
        raise _refusal(
            Attempt(spec=to, user=to.user or getuser(), error=error, waited_s=timeout_s, keys=no_keys),
            proxy,
            spec.address,
        ) from error
    finally:
        if gateway:
            _close(gateway)
        if proxy:
            proxy.close()
    return login, address, key


def jump_hosts(spec: NodeSpec) -> tuple[NodeSpec, ...]:
    """The machines on the way to a node in the order of connection, as nodes of their own."""
    found: list[NodeSpec] = []
    for hop in _hops_to(login_of(spec).spec, spec.name):
        name = re.sub("[^a-z0-9._-]", "-", hop.asked.lower())[:63]
        one = NodeSpec(name=name, address=hop.asked, user=hop.user, port=hop.port)
        way = ",".join(f"{host.user}@{host.address}:{host.port}" for host in found)
        found.append(one.model_copy(update={"jump": way}) if way else one)
    return tuple(found)


def _gateway(login: Login, node: str) -> Any:
    """An open connection to the last of the jump hosts, through the others; None without any."""
    gateway: Any = None
    for hop in _hops_to(login.spec, node):
        host = _Host(
            address=hop.host,
            user=hop.user,
            port=hop.port,
            identities=hop.identities,
            names=hop.key_names,
            accept_by=f"ssh -p {hop.port} {hop.user}@{hop.asked} true",
            proxy_command="" if gateway else hop.proxy_command,
            asked=hop.asked,
        )
        before, gateway = gateway, _connection(host, node=node, gateway=gateway)
        there = NodeSpec(name=node, address=hop.host, user=hop.user, port=hop.port)
        try:
            _open(gateway, there, host)
        except NodeUnreachableError as error:
            if before:
                _close(before)
            error.message = f"the jump host on the way to it: {error.message}"
            raise
    return gateway


def _hops_to(spec: NodeSpec, node: str) -> list[SshSettings]:
    """Jump hosts on the way to the address of a login."""
    try:
        return _hops(spec.jump.split(",") if spec.jump else ())
    except ConfigError as error:
        raise NodeUnreachableError(error.message, node=node, hint=error.hint) from error


MAX_HOPS = 8


def _hops(words: Sequence[str]) -> list[SshSettings]:
    """Jump hosts in the order of connection. As with ssh, the first one's own configuration may name further ones."""
    hops: list[SshSettings] = []
    while words:
        found = [settings_of_hop(word) for word in words]
        hops = found + hops
        if len(hops) > MAX_HOPS:
            raise ConfigError(f"more than {MAX_HOPS} jump hosts in a row", hint="does ProxyJump lead back to itself?")
        words = found[0].jumps
    return hops


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


def _is_alive(connection: Any) -> bool:
    transport = connection.client.get_transport()
    return transport is not None and bool(transport.is_active())


def _chunks(channel: paramiko.Channel, deadline: float) -> Iterator[bytes]:
    while True:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        if not (chunk := channel.recv(CHUNK)):
            return
        yield chunk
