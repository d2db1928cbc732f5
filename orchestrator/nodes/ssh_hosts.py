"""The machines of `~/.ssh/config`, as paramiko reads it: files are read, nothing is looked up and nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paramiko import SSHConfig
from paramiko.ssh_exception import SSHException

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.ansible_host import jump_of_command
from orchestrator.specs.inventory_files.inventory_import import ImportedInventory, ImportedNode

_SETTING = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_COMMENT = re.compile(r'^((?:"[^"]*"|[^"#]|(?<=\S)#)*?)\s+#.*$')
"""OpenSSH 8.7 and newer: a `#` that begins a word outside quotes begins a comment."""
_WHOLE_LINE = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
"""Their value is the rest of the line, `#` included."""
_NOT_FOLLOWED = ("match", "canonicalizehostname", "canonicaldomains", "canonicalizemaxdots")
"""`Match exec` runs commands and canonical names ask the DNS: reading a file should do neither."""
_INCLUDES = 64
_MAX_BYTES = 1024 * 1024
_FORGES = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "ssh.dev.azure.com", "git.sr.ht")


def from_ssh_config(text: str, *, home: Path, included: bool = False) -> ImportedInventory:
    """Every Host without wildcards: HostName, User, Port, IdentityFile, ProxyJump; wildcard blocks apply.

    `included`: read the files that `Include` names, relative ones in `~/.ssh`. Hosts that others jump through and
    servers for git are noted and left out.
    """
    reader = _Reader(home, included)
    lines = reader.read(text.splitlines())
    nodes: list[ImportedNode] = []
    notes = reader.notes
    try:
        config = SSHConfig.from_text("\n".join(lines))
        for host in _concrete_hosts(lines):
            values, missing = _values(config.lookup(host), host, home)
            nodes.append(ImportedNode(name=host, values=values))
            notes.extend(f"{host}: {note}" for note in missing)
    except (SSHException, ValueError) as error:
        raise ConfigError(f"not an SSH configuration: {error}") from error
    return ImportedInventory(nodes=tuple(nodes), notes=tuple(dict.fromkeys(notes)), not_for_training=_others(nodes))


def look_up(host: str, *, home: Path) -> dict[str, list[str]]:
    """Values for a host by keyword, from the user's and the system's configuration; `Match` is not followed."""
    found: dict[str, list[str]] = {}
    for file in (home / ".ssh" / "config", Path("/etc/ssh/ssh_config")):
        try:
            lines = file.read_text("utf-8", errors="replace")[:_MAX_BYTES].splitlines()
        except OSError:
            continue
        try:
            options = SSHConfig.from_text("\n".join(_Reader(home, True).read(lines))).lookup(host)
        except (SSHException, ValueError) as error:
            raise ConfigError(f"{file} is not an SSH configuration: {error}") from error
        if options.get("hostname") == host:  # paramiko's own default
            options.pop("hostname")
        for key, value in options.items():
            found.setdefault(key, value if isinstance(value, list) else [str(value)])
    return found


class _Reader:
    """The lines that are read, those of included files in their place, and notes on lines that are not."""

    def __init__(self, home: Path, included: bool) -> None:
        self.notes: list[str] = []
        self._home = home
        self._left = _INCLUDES if included else 0
        self._block = "Host *"

    def read(self, lines: list[str]) -> list[str]:
        blocks: list[str] = []
        in_match = False
        for raw in lines:
            match = _SETTING.fullmatch(raw)
            key = match.group(1).lower() if match else ""
            line = raw if key in _WHOLE_LINE else _without_comment(raw)
            in_match = key == "match" or (in_match and key != "host")
            if key == "host" and not in_match:
                self._block = line.strip()
            if key == "include" and match is not None and not in_match:
                blocks += self._include(line.strip(), _without_comment(match.group(2)))
            elif key in (*_NOT_FOLLOWED, "include"):
                self.notes.append(f"not followed: {line.strip()}")
            elif not in_match:
                blocks.append(line)
        return blocks

    def _include(self, line: str, patterns: str) -> list[str]:
        """The lines of the files that match. In the block of one Host they would count for that host alone."""
        block = self._block
        blocks: list[str] = []
        for pattern in patterns.split():
            found = self._files(pattern.strip('"')) if block == "Host *" else []
            if not found or len(found) > self._left:
                self.notes.append(f"not followed: {line}")
                continue
            self._left -= len(found)
            for path in found:
                try:
                    lines = path.read_text("utf-8", errors="replace")[:_MAX_BYTES].splitlines()
                except OSError as error:
                    self.notes.append(f"not followed: {line} ({path}: {error.strerror})")
                    continue
                blocks += [*self.read(lines), block]
                self._block = block
        return blocks

    def _files(self, pattern: str) -> list[Path]:
        if not self._left:
            return []
        pattern = pattern.replace("~", str(self._home), 1) if pattern.startswith("~/") else pattern
        root = Path("/") if pattern.startswith("/") else self._home / ".ssh"
        try:
            return sorted(path for path in root.glob(pattern.lstrip("/")) if path.is_file())
        except (ValueError, OSError):
            return []


def _without_comment(line: str) -> str:
    match = _COMMENT.match(line)
    return match.group(1) if match else line


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
        values["port"] = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else port
    identities = options.get("identityfile", [])
    if identities:
        values["identity"] = identities[0].replace(f"{home}/", "~/", 1)
        notes.extend(f"a further IdentityFile, {other}" for other in identities[1:])
    # of the two, OpenSSH takes the one that it meets first; paramiko keeps them in that order
    way = next((key for key in options if key in ("proxyjump", "proxycommand")), "")
    given = str(options.get(way) or "")
    jump = given if way == "proxyjump" else jump_of_command(given)
    if "," in jump:
        notes.append(f"ProxyJump {given}: orch goes through one host at most; write `jump: {given.rpartition(',')[2]}`")
    elif jump and jump.lower() != "none":
        values["jump"] = jump
    elif way == "proxycommand" and given and given.lower() != "none":
        notes.append("ProxyCommand is not supported in an inventory; use jump")
    return values, notes


def _others(nodes: list[ImportedNode]) -> dict[str, str]:
    """Hosts that are probably not for training, with the reason."""
    jumps = {str(node.values.get("jump", "")).rpartition("@")[2].partition(":")[0] for node in nodes} - {""}
    addresses = {node.name: str(node.values["address"]).lower() for node in nodes}
    through = {name: "others are reached through it" for name in addresses if name in jumps}
    forges = {name: "a server for git" for name, address in addresses.items() if address in _FORGES}
    return {**through, **forges}
