"""An Ansible inventory in YAML: hosts, groups in groups, and the few variables that say how to reach a machine.

https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.hostlist import MAX_NAMES
from orchestrator.specs.inventory_files.inventory_import import Found, FoundNode
from orchestrator.specs.inventory_files.inventory_yaml import plain, read_yaml, shown

_KEYS = {
    "ansible_host": "address",
    "ansible_user": "user",
    "ansible_port": "port",
    "ansible_ssh_private_key_file": "identity",
}
_RANGE = re.compile(r"\[(\d{1,9}):(\d{1,9})(?::(\d{1,9}))?\]|\[([a-z]):([a-z])(?::(\d{1,9}))?\]")
_NO_LABEL = ("all", "ungrouped")


def from_ansible(text: str | bytes, *, filename: str) -> Found:
    """Every host with the variables of its groups (inner before outer) and its own; its groups as the label `group`."""
    top = plain(read_yaml(text, filename=filename, tags=True))
    if not isinstance(top, dict):
        raise ConfigError(
            f"{filename} is no Ansible inventory in YAML", hint="expected groups such as `all: {hosts: …}`"
        )
    reading = _Reading()
    for name, group in top.items():
        reading.group(name, group, {}, ())
    return reading.found()


class _Reading:
    """Hosts gathered from all groups that name them."""

    def __init__(self) -> None:
        self._variables: dict[str, dict[str, Any]] = {}
        self._own: set[tuple[str, str]] = set()
        self._groups: dict[str, list[str]] = {}
        self._notes: dict[str, None] = {}

    def group(self, name: str, group: Any, outer: dict[str, Any], path: tuple[str, ...]) -> None:
        """Its hosts, then its children, to which its variables are passed on."""
        if group is None:
            return
        if not isinstance(group, dict):
            self._note(f"group {shown(name)} is no mapping of hosts, vars and children")
            return
        variables = {**outer, **_mapping(group.get("vars"))}
        path = (*path, name)
        for key in group.keys() - {"hosts", "vars", "children"}:
            self._note(f"group {shown(name)}: the key {shown(key)} means nothing to Ansible")
        for pattern, own in _mapping(group.get("hosts")).items():
            for host in self._hosts(pattern):
                self._host(host, variables, _mapping(own), path)
        for child, inner in _mapping(group.get("children")).items():
            self.group(child, inner, variables, path)

    def found(self) -> Found:
        """All hosts in the order first named."""
        nodes = tuple(self._node(host, variables) for host, variables in self._variables.items())
        return Found(nodes=nodes, notes=tuple(self._notes))

    def _hosts(self, pattern: str) -> Iterator[str]:
        try:
            yield from _expanded(pattern)
        except ValueError as error:
            self._note(f"hosts {shown(pattern)} left out: {error}")

    def _host(self, host: str, outer: dict[str, Any], own: dict[str, Any], path: tuple[str, ...]) -> None:
        known = self._variables.setdefault(host, {})
        known.update({key: value for key, value in outer.items() if (host, key) not in self._own})
        known.update(own)
        self._own.update((host, key) for key in own)
        groups = self._groups.setdefault(host, [])
        groups.extend(group for group in path if group not in groups and group not in _NO_LABEL)

    def _node(self, host: str, variables: dict[str, Any]) -> FoundNode:
        values: dict[str, Any] = {"address": host}
        for key, value in variables.items():
            if isinstance(value, str) and "{{" in value:
                self._note(f"{host}: {key} is a template, {shown(value)}; write its value yourself")
            elif key in _KEYS:
                values[_KEYS[key]] = int(value) if key == "ansible_port" and str(value).isdecimal() else value
            elif key == "ansible_connection" and value in ("ssh", "local", "smart", "paramiko"):
                values["connection"] = "local" if value == "local" else "ssh"
            else:
                self._note(f"the variable {shown(key)} has no place in an inventory")
        if groups := self._groups[host]:
            values["labels"] = {"group": ",".join(groups)}
        return FoundNode(name=host, values=values)

    def _note(self, text: str) -> None:
        self._notes.setdefault(text)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _expanded(pattern: str) -> list[str]:
    """`www[01:50:2].example.com` and `db-[a:f]`; both ends are in."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last, step = match.group(1, 2, 3) if match.group(1) else match.group(4, 5, 6)
    start, stop = (int(first), int(last)) if match.group(1) else (ord(first), ord(last))
    numbers = range(start, stop + 1, max(1, int(step or 1)))
    if not 0 < len(numbers) <= MAX_NAMES:
        raise ValueError(f"a range of {len(numbers)} hosts")
    middles = [str(number).zfill(len(first)) if match.group(1) else chr(number) for number in numbers]
    names = [
        f"{pattern[: match.start()]}{middle}{rest}" for rest in _expanded(pattern[match.end() :]) for middle in middles
    ]
    if len(names) > MAX_NAMES:
        raise ValueError(f"more than {MAX_NAMES} hosts")
    return names
