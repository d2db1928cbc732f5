"""The login to a machine over SSH: jump hosts, a ProxyCommand, keys or a password, and host keys that are checked."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import fabric
import paramiko

from orchestrator.nodes import host_keys
from orchestrator.nodes.interface import resolved
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
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 15

logging.getLogger("paramiko").addHandler(logging.NullHandler())
"""Its threads log broken connections with tracebacks, which Python prints without a handler. We raise errors."""


def connect(spec: NodeSpec, *, password: str | None) -> Any:
    """Log in to a node. With `password`, it is tried in place of keys. Fabric's connection: it ships no types."""
    login = login_of(spec)
    to, command = login.spec, login.proxy_command
    host = _Host(
        address=to.address if command else resolve(to),  # the command resolves it
        user=to.user,
        port=to.port,
        identities=login.identities,
        names=login.key_names,
        proxy_command=command,
        asked=spec.address,
    )
    connection = _connection(host, node=to.name, gateway=_gateway(login, to.name))
    if password is not None:
        connection.connect_kwargs.pop("key_filename", None)
        connection.connect_kwargs |= {"password": password, "look_for_keys": False, "allow_agent": False}
    try:
        require_identity(to, connection.user)
        _open(connection, to, host)
    except NodeUnreachableError:
        close(connection)  # with the jump hosts, which are logged in
        raise
    connection.client.get_transport().set_keepalive(KEEPALIVE_S)
    return connection


def is_alive(connection: Any) -> bool:
    transport = connection.client.get_transport()
    return transport is not None and bool(transport.is_active())


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
        connection.client.close()
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


def close(connection: Any) -> None:
    """Close a connection with all that it goes through."""
    connection.close()
    if connection.gateway:
        close(connection.gateway)
    if proxy := connection.connect_kwargs.get("sock"):
        proxy.close()


def shown_key(spec: NodeSpec, *, timeout_s: float) -> tuple[Login, str, paramiko.PKey]:
    """Ask for the login of a node, its address, and the host key that it shows, also behind jump hosts and commands."""
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
            close(gateway)
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
                close(before)
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
