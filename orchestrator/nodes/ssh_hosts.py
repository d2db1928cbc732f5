"""The machines of `~/.ssh/config`, as paramiko reads it: the text only, nothing is looked up and nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paramiko import SSHConfig
from paramiko.ssh_exception import SSHException

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_import import Found, FoundNode

_SETTING = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_NOT_FOLLOWED = ("include", "match", "canonicalizehostname", "canonicaldomains")
"""`Match exec` runs commands and canonical names ask the DNS: reading a file should do neither."""


def from_ssh_config(text: str, *, home: Path) -> Found:
    """Every Host without wildcards: HostName, User, Port, IdentityFile, ProxyJump; wildcard blocks apply."""
    lines, notes = _readable(text)
    try:
        config = SSHConfig.from_text("\n".join(lines))
    except (SSHException, ValueError) as error:
        raise ConfigError(f"not an SSH configuration: {error}") from error
    nodes = []
    for host in _concrete_hosts(lines):
        values, missing = _values(config.lookup(host), host, home)
        nodes.append(FoundNode(name=host, values=values))
        notes.extend(f"{host}: {note}" for note in missing)
    return Found(nodes=tuple(nodes), notes=tuple(dict.fromkeys(notes)))


def _readable(text: str) -> tuple[list[str], list[str]]:
    """The lines that are read, and notes on those that are not."""
    lines: list[str] = []
    notes: list[str] = []
    in_match = False
    for line in text.splitlines():
        match = _SETTING.fullmatch(line)
        key = match.group(1).lower() if match else ""
        in_match = key == "match" or (in_match and key != "host")
        if key in _NOT_FOLLOWED:
            notes.append(f"not followed: {line.strip()}")
        elif not in_match:
            lines.append(line)
    return lines, notes


def _concrete_hosts(lines: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for line in lines:
        match = _SETTING.fullmatch(line)
        if match is None or match.group(1).lower() != "host":
            continue
        for word in match.group(2).split():
            host = word.strip('"')
            if host not in seen and not any(sign in host for sign in "*?!"):
                seen.add(host)
                yield host


def _values(options: Any, host: str, home: Path) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {"address": options.get("hostname", host)}
    notes: list[str] = []
    if user := options.get("user"):
        values["user"] = user
    port = str(options.get("port", 22))
    if port != "22":
        values["port"] = int(port) if port.isdecimal() else port
    identities = options.get("identityfile", [])
    if identities:
        values["identity"] = identities[0].replace(f"{home}/", "~/", 1)
        notes.extend(f"a further IdentityFile, {other}" for other in identities[1:])
    jump = options.get("proxyjump")
    if jump and jump.lower() != "none":
        values["jump"] = jump
    elif options.get("proxycommand"):
        notes.append("ProxyCommand has no place in an inventory; use jump")
    return values, notes
