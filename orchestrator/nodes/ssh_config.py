"""`~/.ssh/config` as `ssh` reads it (Host, Match, Include, ProxyJump): the answer of `ssh -G -- HOST`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from getpass import getuser
from pathlib import Path

from orchestrator.nodes.proxy_command import expanded
from orchestrator.nodes.ssh_hosts import look_up
from orchestrator.specs.errors import ConfigError, NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.inventory_files.ansible_host import jump_of_command
from orchestrator.specs.inventory_types import HOST

ANSWER_S = 10.0
"""Timeout of `ssh -G`: a `Match exec` of the user's runs a command."""
_MAX_CHARACTERS = 256 * 1024
_USER = r"[^\s@:\x00-\x1f\x7f-][^\s@:\x00-\x1f\x7f]{0,63}"
_HOP = re.compile(rf"(?:(?P<user>{_USER})@)?(?P<host>{HOST[1:-1]})(?::(?P<port>[1-9][0-9]{{0,4}}))?")
_USUAL_KEYS = {"~/.ssh/id_rsa", "~/.ssh/id_ecdsa"}
"""Keys that `ssh -G` lists where the configuration names none."""


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """Settings with which `ssh` would reach a host."""

    asked: str
    """The host as it is written: an alias, a name or an address."""
    host: str
    """HostName: an address, or a name to resolve."""
    user: str
    port: int
    identities: tuple[str, ...] = ()
    """Key files that the configuration names; empty: the usual ones."""
    proxy_command: str = ""
    """Command of the user's configuration whose stdin and stdout are the connection; empty for none."""
    jumps: tuple[str, ...] = ()
    """Hosts to go through, first hop first: `[user@]host[:port]`."""
    key_names: tuple[str, ...] = ()
    """Names under which files of known hosts may have its key, beside its address."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """A node with the settings of the user's SSH configuration; the inventory's own keys win."""

    spec: NodeSpec
    """Its address, user, port and jump are those of the connection."""
    identities: tuple[str, ...]
    key_names: tuple[str, ...]
    proxy_command: str = ""


def login_of(spec: NodeSpec) -> Login:
    """Find the login of a node. NodeUnreachableError: the configuration cannot be read, or asks for the impossible."""
    try:
        found = settings_for(spec.address, spec.user, spec.port if "port" in spec.model_fields_set else None, spec.jump)
    except ConfigError as error:
        raise NodeUnreachableError(error.message, node=spec.name, hint=error.hint) from error
    keys = {"address": found.host, "user": found.user, "port": found.port, "jump": ",".join(found.jumps) or None}
    return Login(
        spec=spec.model_copy(update=keys),
        identities=(spec.identity,) if spec.identity else found.identities,
        key_names=found.key_names,
        proxy_command=found.proxy_command,
    )


def settings_of_hop(hop: str) -> SshSettings:
    """Settings of a jump host, `[user@]host[:port]`. ConfigError: it is not one."""
    parts = _HOP.fullmatch(hop)
    if parts is None:
        raise ConfigError(f"the jump host {hop!r} is not [user@]host[:port]", hint="ssh -G HOST shows ProxyJump")
    return settings_for(parts["host"], parts["user"], int(parts["port"]) if parts["port"] else None, None)


def settings_for(host: str, user: str | None, port: int | None, jump: str | None) -> SshSettings:
    """Settings for a host; the given user, port and jump host win over the configuration. Cached per process."""
    return _settings(host, user, port, jump, str(Path.home()))


@lru_cache(maxsize=2048)
def _settings(host: str, user: str | None, port: int | None, jump: str | None, home: str) -> SshSettings:
    program = shutil.which("ssh")
    # Without the program, our own reader: Host and Include, not Match.
    answer = _asked(program, host, user, port, home) if program else look_up(host, home=Path(home))

    def value(key: str) -> str:
        return (answer.get(key) or [""])[0]

    name, own_port = value("hostname") or host, str(port or value("port") or 22)
    if not re.fullmatch(HOST, name) or not (own_port.isascii() and own_port.isdecimal() and int(own_port) < 65536):
        raise ConfigError(
            f"the SSH configuration gives {host} the address {name!r}, port {own_port!r}; expected an IPv4 address or "
            "a host name, and a port",
            hint=f"ssh -G {host}",
        )
    login = user or value("user") or getuser()
    jumps, command = ((jump,), "") if jump else _way(value("proxyjump"), value("proxycommand"))
    if command and value("proxyusefdpass").lower() == "yes":
        raise ConfigError(f"the SSH configuration of {host} has ProxyUseFdpass, which only ssh itself can use")
    return SshSettings(
        asked=host,
        host=name,
        user=login,
        port=int(own_port),
        identities=_identities(answer.get("identityfile", []), {"d": home, "h": name, "r": login, "u": getuser()}),
        jumps=jumps,
        proxy_command=expanded(command, {"h": name, "n": host, "p": own_port, "r": login}),
        key_names=(one,) if re.fullmatch(HOST, one := value("hostkeyalias") or name) else (),
    )


def _asked(program: str, host: str, user: str | None, port: int | None, home: str) -> dict[str, list[str]]:
    """Ask `ssh -G`, and return its values by keyword."""
    words = [program, "-G", *(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    if home != os.path.expanduser(f"~{getuser()}"):  # noqa: PTH111  # ssh ignores $HOME; Path.home() does not
        own = Path(home) / ".ssh" / "config"
        words += ["-F", str(own) if own.is_file() else "none"]
    try:
        ran = subprocess.run(
            [*words, "--", host], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"ssh -G {host} had not ended after {ANSWER_S:.0f} s", hint="a `Match exec` in ~/.ssh/config may hang"
        ) from None
    if ran.returncode != 0:
        errors = ran.stderr.decode(errors="replace").strip() or f"exit code {ran.returncode}"
        raise ConfigError(f"ssh cannot read its configuration: {errors.splitlines()[0][:500]}", hint=f"ssh -G {host}")
    values: dict[str, list[str]] = {}
    for line in ran.stdout.decode(errors="replace")[:_MAX_CHARACTERS].splitlines():
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword.lower(), []).append(value.strip())
    return values


def _identities(named: Sequence[str], tokens: dict[str, str]) -> tuple[str, ...]:
    """Files with `%d`, `%h`, `%r` and `%u` replaced; none where these are the usual ones."""
    if set(named) >= _USUAL_KEYS:
        return ()
    written = [re.sub("%([dhru%])", lambda found: tokens.get(found[1], "%"), one) for one in named]
    return tuple(one for one in written if one.lower() != "none")


def _way(jump: str, command: str) -> tuple[tuple[str, ...], str]:
    """Jump hosts, or the ProxyCommand, which is a jump host too where it is `ssh -W`."""
    if jump and jump.lower() != "none":
        return tuple(one.strip().removeprefix("ssh://") for one in jump.split(",")), ""
    if not command or command.lower() == "none":
        return (), ""
    hop = jump_of_command(command)
    return ((hop,), "") if hop else ((), command)
