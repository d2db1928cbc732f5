"""`group_vars` and `host_vars` beside an Ansible inventory; files that are none as they are: encrypted, or a script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_yaml import plain, read_file, read_yaml

VAULT = "$ANSIBLE_VAULT;"
"""Beginning of a file or value that ansible-vault has encrypted."""
_SUFFIXES = (".yml", ".yaml", ".json")
_FILES = 1024


def by_the_program(filename: str) -> str:
    """The line to paste where only Ansible can read an inventory: orch never starts its programs itself, as they run
    what the folder names (scripts, plugins of its ansible.cfg)."""
    return f"ansible-inventory -i {shlex.quote(filename)} --list | orch inventory import - --output inventory.yaml"


def require_static(text: str, *, filename: str) -> None:
    """ConfigError for a file that is encrypted as a whole, or a script."""
    if text.startswith(VAULT):
        raise ConfigError(
            f"{filename} is encrypted by ansible-vault",
            hint=f"ansible-vault view {shlex.quote(filename)} | orch inventory import - --output inventory.yaml",
        )
    if text.startswith("#!"):
        raise ConfigError(
            f"{filename} is a script (it begins with #!), and orch runs nothing of a folder that it reads",
            hint=f"if you trust it: {by_the_program(filename)}",
        )


@dataclass(kw_only=True)
class VariablesBeside:
    """Variables of groups and hosts from files, and notes on the files that could not be read."""

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def variables_beside(file: Path) -> VariablesBeside:
    """Variables in the folders beside an inventory file. ConfigError names the line of a file that is not YAML."""
    found = VariablesBeside()
    for folder, values in (("group_vars", found.groups), ("host_vars", found.hosts)):
        for name, path in _files(file.parent / folder):
            text = read_file(path).decode("utf-8-sig", errors="replace")
            if text.startswith(VAULT):
                found.notes.append(f"{path} is encrypted by ansible-vault, not read: {by_the_program(str(file))}")
            elif text.strip(" \n-"):
                read = plain(read_yaml(text, filename=str(path), tags=True))
                values.setdefault(name, {}).update(read if isinstance(read, dict) else {})
    return found


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files with the name of their group or host: `NAME`, `NAME.yml`, or any in a folder `NAME`."""
    try:
        entries = sorted(folder.iterdir())[:_FILES]
    except OSError:
        return
    for entry in entries:
        name = entry.stem if entry.is_file() and entry.suffix in _SUFFIXES else entry.name
        for path in sorted(entry.rglob("*"))[:_FILES] if entry.is_dir() else [entry]:
            known = path == entry or path.suffix in ("", *_SUFFIXES)
            if known and path.is_file() and not path.name.startswith(".") and not path.name.endswith("~"):
                yield name, path
