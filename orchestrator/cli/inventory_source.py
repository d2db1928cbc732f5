"""Input and output of `orch inventory import`, and how it tells one kind of file from another."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory_files.inventory_import import ImportedInventory, from_hostfile, from_hostlist
from orchestrator.specs.inventory_files.inventory_yaml import read_file

_SSH_HOST = re.compile(r"^\s*(host|match)\b[ \t=]+\S", re.IGNORECASE | re.MULTILINE)
_SSH_KEYWORD = re.compile(
    r"\s*(include|hostname|user|port|identity\w*|proxy\w+|forward\w+|control\w+|server\w+|stricthost\w+|user\w+|"
    r"addkeys\w+|compression|ciphers|macs|kex\w+|hostkey\w*|pubkey\w+|preferred\w+|sendenv|setenv|loglevel|"
    r"connect\w+|tcpkeepalive|addressfamily|batchmode|hash\w+|visual\w+|canonical\w+|usekeychain)[ \t=]+\S.*",
    re.IGNORECASE,
)
"""A configuration may consist of settings for all hosts, or of `Include` alone."""
_YAML_GROUP = re.compile(r"^[\w.-]+:\s*(#.*)?$|^---|^\{|^plugin:\s*\S", re.MULTILINE)
_INI = re.compile(r"^\s*\[[^\]\s]+\]\s*([#;].*)?$|^[^#;\n]*\sansible_\w+\s*=", re.MULTILINE)
"""A `[group]`, or a host with variables before any group."""


def read_source(source: str, kind: str) -> ImportedInventory:
    """The machines of a file, of stdin (`-`) or of a hostlist."""
    path = Path(source).expanduser()
    if kind == "hostlist" or (kind == "auto" and source != "-" and not path.exists()):
        return _names(source, kind)
    content = sys.stdin.buffer.read() if source == "-" else read_file(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not UTF-8 text") from None
    return _parsed(text, guessed(text) if kind == "auto" else kind, source)


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, unless `force`."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already; nothing was written", hint="--force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def guessed(text: str) -> str:
    """The kind of file by its text; a hostfile where nothing says otherwise."""
    if _INI.search(text):
        return "ansible-ini"
    if _SSH_HOST.search(text):
        return "ssh-config"
    if _YAML_GROUP.search(text):
        return "ansible"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(map(_SSH_KEYWORD.fullmatch, lines)):
        return "ssh-config"
    return "hostfile"


def _names(source: str, kind: str) -> ImportedInventory:
    looks_like_path = "/" in source or source.endswith((".yml", ".yaml", ".txt"))
    if kind == "auto" and looks_like_path:
        raise ConfigError(f"no file {source}", hint="give a file, - for stdin, or names such as node[01-05]")
    return from_hostlist(source)


def _parsed(text: str, kind: str, source: str) -> ImportedInventory:
    if kind == "ssh-config":
        from orchestrator.nodes.ssh_hosts import from_ssh_config

        return from_ssh_config(text, home=Path.home(), included=source != "-")
    if kind in ("ansible", "ansible-ini"):
        from orchestrator.specs.inventory_files.ansible_inventory import from_ansible, from_ansible_ini

        ini = kind == "ansible-ini" or (not _YAML_GROUP.search(text) and _INI.search(text))
        return from_ansible_ini(text) if ini else from_ansible(text, filename=source)
    return from_hostfile(text, filename=source)
