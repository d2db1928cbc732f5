"""What `orch inventory import` reads and writes, and how it tells one kind of file from another."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from orchestrator.cli.context import read_file
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory_files.inventory_import import Found, from_hostfile, from_hostlist

_SSH_HOST = re.compile(r"^\s*(host|match)\b[ \t=]+\S", re.IGNORECASE | re.MULTILINE)
_YAML_GROUP = re.compile(r"^[\w.-]+:\s*(#.*)?$|^---|^\{", re.MULTILINE)
_INI_GROUP = re.compile(r"^\s*\[[\w:.-]+\]\s*$", re.MULTILINE)


def read_source(source: str, kind: str) -> Found:
    """The machines of a file, of stdin (`-`) or of a hostlist."""
    path = Path(source).expanduser()
    if kind == "hostlist" or (kind == "auto" and source != "-" and not path.exists()):
        return _names(source, kind)
    content = sys.stdin.buffer.read() if source == "-" else read_file(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{source} is not UTF-8 text") from None
    return _parsed(text, guessed(text, source) if kind == "auto" else kind, source)


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file that is not there yet, unless `force`."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already; nothing was written", hint="--force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def guessed(text: str, source: str) -> str:
    """What kind of file this is, by what stands in it."""
    if _INI_GROUP.search(text):
        raise ConfigError(
            f"{source} looks like an Ansible inventory in INI style, which is not read",
            hint=f"ansible-inventory -i {source} --list --yaml | orch inventory import -",
        )
    if _SSH_HOST.search(text):
        return "ssh-config"
    if _YAML_GROUP.search(text):
        return "ansible"
    return "hostfile"


def _names(source: str, kind: str) -> Found:
    looks_like_path = "/" in source or source.endswith((".yml", ".yaml", ".txt"))
    if kind == "auto" and looks_like_path:
        raise ConfigError(f"no file {source}", hint="give a file, - for stdin, or names such as node[01-05]")
    return from_hostlist(source)


def _parsed(text: str, kind: str, source: str) -> Found:
    if kind == "ssh-config":
        from orchestrator.nodes.ssh_hosts import from_ssh_config

        return from_ssh_config(text, home=Path.home())
    if kind == "ansible":
        from orchestrator.specs.inventory_files.ansible_inventory import from_ansible

        return from_ansible(text, filename=source)
    return from_hostfile(text)
