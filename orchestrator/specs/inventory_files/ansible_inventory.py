"""Ansible inventories as files: YAML, INI, and the JSON of `ansible-inventory --list`.

https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from contract.hostlist import MAX_NAMES
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.ansible_host import REACH, node_of
from orchestrator.specs.inventory_files.ansible_vars import VariablesBeside, by_the_program, require_static
from orchestrator.specs.inventory_files.inventory_import import ImportedInventory
from orchestrator.specs.inventory_files.inventory_yaml import mapping_of, plain, read_yaml, require_single_keys, shown

_RANGE = re.compile(r"\[(\d{1,9}):(\d{1,9})(?::(\d{1,9}))?\]|\[([a-z]):([a-z])(?::(\d{1,9}))?\]")
_SECTION = re.compile(r"\[(?P<group>[^\]:]+)(?::(?P<kind>vars|children|hosts))?\]\s*(?:[#;].*)?")
_PORT = re.compile(r"(?P<host>[^:\s\[\]]*(?:\[[^\]]*\][^:\s\[\]]*)*):(?P<port>\d{1,5})")
_META = "_meta"
_NODES = re.compile(r"^[\"']?nodes[\"']?\s*:", re.MULTILINE)
_GROUP_KEYS = {"hosts", "vars", "children"}
YAML_GROUP = re.compile(r"^[\w.-]+:\s*([#{].*)?$|^---|^\{|^plugin:\s*\S", re.MULTILINE)
INI = re.compile(r"^\s*\[[^\]\s]+\]\s*([#;].*)?$|^[^#;\n]*\sansible_\w+\s*=", re.MULTILINE)
"""A `[group]`, or a host with variables before any group."""


def is_ours(text: str) -> bool:
    """Return whether it has the key that every `inventory.yaml` has."""
    return _NODES.search(text) is not None


def is_ansible(text: str, *, filename: str) -> bool:
    """Return whether this is an Ansible inventory (YAML, JSON, INI) rather than an `inventory.yaml`."""
    if is_ours(text):
        return False
    top = _as_mapping(text, filename)
    if top is None:
        return INI.search(text) is not None
    groups = [one for one in top.values() if isinstance(one, dict) and one.keys() & _GROUP_KEYS]
    return _META in top or isinstance(top.get("plugin"), str) or bool(groups)


def read_ansible(text: str, *, filename: str, beside: VariablesBeside | None = None) -> ImportedInventory:
    """Every host of an inventory in YAML, JSON or INI. `beside`: variables from files beside it."""
    require_static(text, filename=filename)
    if _as_mapping(text, filename) is None and INI.search(text):
        return from_ansible_ini(text, filename=filename, beside=beside)
    return from_ansible(text, filename=filename, beside=beside)


def _as_mapping(text: str, filename: str) -> dict[str, Any] | None:
    try:
        top = plain(read_yaml(text, filename=filename, tags=True))
    except ConfigError:
        return None
    return top if isinstance(top, dict) else None


def from_ansible(text: str | bytes, *, filename: str, beside: VariablesBeside | None = None) -> ImportedInventory:
    """Every host of a YAML or JSON inventory with the variables that Ansible gives it; its groups as label `group`."""
    tree = read_yaml(text, filename=filename, tags=True)
    require_single_keys(tree, filename=filename)
    top = plain(tree)
    if not isinstance(top, dict):
        raise ConfigError(
            f"{filename} is not an Ansible inventory in YAML", hint="expected groups such as `all: {hosts: …}`"
        )
    if isinstance(top.get("plugin"), str):
        raise ConfigError(
            f"{filename} configures Ansible's plugin {shown(top['plugin'])} and names no machines itself",
            hint=by_the_program(filename),
        )
    _refuse_lists(top, filename)
    reading = _Reading(beside)
    meta = mapping_of(top.pop(_META, None))
    for name, group in top.items():
        reading.group(name, group)
    for host, own in mapping_of(meta.get("hostvars")).items():
        if host in reading.groups.hosts:
            reading.groups.hosts[host].update(mapping_of(own))
    return reading.found()


def _refuse_lists(top: dict[str, Any], filename: str) -> None:
    """ConfigError for a list in place of a group, or under `hosts:`: Ansible takes it from its scripts alone."""
    waiting = [] if _META in top else list(top.items())
    while waiting:
        name, group = waiting.pop()
        if isinstance(group, list) or isinstance(mapping_of(group).get("hosts"), list):
            raise ConfigError(
                f"{filename} is no Ansible inventory in YAML or JSON: {shown(name)} has a list of hosts, not a mapping",
                hint="if it is Ansible's, write `hosts: {alpha: {}, beta: {}}`; otherwise lines `NAME slots=2`",
            )
        waiting += mapping_of(mapping_of(group).get("children")).items()


def from_ansible_ini(
    text: str, *, filename: str = "hosts.ini", beside: VariablesBeside | None = None
) -> ImportedInventory:
    """Every host of an INI inventory: `[group]`, `[group:vars]`, `[group:children]`, `host key=value …`.

    ConfigError names every line that Ansible refuses, too.
    """
    reading = _Reading(beside)
    section, kind = UNGROUPED, "hosts"
    problems: list[str] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        try:
            if header := _SECTION.fullmatch(line):
                section, kind = header["group"].strip(), header["kind"] or "hosts"
                reading.groups.group(section)
            elif line[0] == "[" and not _RANGE.match(line):
                raise ValueError(f"{shown(line)} is no section; expected [group], [group:vars] or [group:children]")
            elif kind == "vars":
                key, value = _key_value(line)
                reading.groups.group(section).variables[key.strip()] = _unquoted(value.strip())
            elif kind == "children":
                child = line.split()[0]
                reading.groups.group(child)
                reading.groups.group(section).children[child] = None
            else:
                reading.host_line(line, section)
        except ValueError as error:
            problems.append(f"{filename}:{number}: {error}")
    if problems:
        raise ConfigError(f"cannot read {filename}", problems=problems)
    return reading.found()


class _Reading:
    """Hosts and groups gathered from all places that name them, with notes on what could not be read."""

    def __init__(self, beside: VariablesBeside | None) -> None:
        self.groups = AnsibleGroups()
        self._beside = beside or VariablesBeside()
        self._notes: dict[str, None] = dict.fromkeys(self._beside.notes)

    def group(self, name: str, given: Any) -> None:
        """A group of YAML or JSON: its variables, its hosts, then its children."""
        group = self.groups.group(name)
        if given is None:
            return
        if isinstance(given, list):  # an inventory script's short form
            given = {"hosts": given}
        if not isinstance(given, dict):
            self.note(f"group {shown(name)} is not a mapping of hosts, vars and children")
            return
        for key in given.keys() - {"hosts", "vars", "children"}:
            self.note(f"group {shown(name)}: the key {shown(key)} means nothing to Ansible")
        group.variables.update(mapping_of(given.get("vars")))
        for pattern, own in self._entries(name, "hosts", given.get("hosts")):
            for host in self._hosts(pattern):
                self.groups.add_host(host, name, mapping_of(own))
        for child, inner in self._entries(name, "children", given.get("children")):
            group.children[child] = None
            self.group(child, inner)

    def host_line(self, line: str, section: str) -> None:
        """A line of INI: `name[01:10]:port key=value key="two words"  # comment`. ValueError: it is none."""
        words = shlex.split(line, comments=True)
        own: dict[str, Any] = dict(map(_key_value, words[1:]))
        pattern = words[0]
        if with_port := _PORT.fullmatch(pattern):
            pattern = with_port["host"]
            own.setdefault("ansible_port", with_port["port"])
        for host in self._hosts(pattern):
            earlier = self.groups.hosts.get(host, {})
            for name in own.keys() & earlier.keys() & REACH:
                if own[name] != earlier[name]:
                    self.note(f"{host} has {name} {shown(earlier[name])} and {shown(own[name])}; took the last one")
            self.groups.add_host(host, section, own)

    def found(self) -> ImportedInventory:
        """All hosts in the order first named."""
        self.groups.update(self._beside)
        resolved = self.groups.resolve()
        nodes = [node_of(host, variables, labels, self.note) for host, (variables, labels) in resolved.items()]
        return ImportedInventory(nodes=tuple(node for node in nodes if node is not None), notes=tuple(self._notes))

    def note(self, text: str) -> None:
        """Something that a person should know; each text once."""
        self._notes.setdefault(text)

    def _entries(self, name: str, key: str, given: Any) -> Iterator[tuple[str, Any]]:
        """Hosts or children: a mapping, one name as text, or JSON's list of names."""
        if isinstance(given, dict):
            yield from given.items()
        elif isinstance(given, str) and given:
            yield given, None
        elif isinstance(given, list):
            for item in given:
                if isinstance(item, str):
                    yield item, None
                else:
                    self.note(f"group {shown(name)}: {shown(item)} among its {key} is not a name")
        elif given is not None:
            self.note(f"group {shown(name)}: {key} {shown(given)} left out; expected a mapping of names")

    def _hosts(self, pattern: str) -> Iterator[str]:
        try:
            yield from _expanded(pattern)
        except ValueError as error:
            self.note(f"hosts {shown(pattern)} left out: {error}")


def _key_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"{shown(word)} is not key=value")
    return key, value


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


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


ALL, UNGROUPED = "all", "ungrouped"
_PRIORITY = "ansible_group_priority"


@dataclass(kw_only=True)
class AnsibleGroup:
    """An Ansible group, merged from every section that mentions it."""

    variables: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)


class AnsibleGroups:
    """All groups of an inventory by name. Every host and every group is in `all`."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, Any]] = {}
        """A host's own variables, in the order in which hosts were first named."""
        self._groups: dict[str, AnsibleGroup] = {ALL: AnsibleGroup()}

    def group(self, name: str) -> AnsibleGroup:
        """The group of this name, created where it is new."""
        return self._groups.setdefault(name, AnsibleGroup())

    def add_host(self, host: str, group: str, own: dict[str, Any]) -> None:
        """Put a host into a group. Where its own variables are given several times, the last value counts."""
        self.group(group).hosts[host] = None
        self.hosts.setdefault(host, {}).update(own)

    def update(self, beside: VariablesBeside) -> None:
        """Variables of files win over those of the inventory; names that it does not have are left out."""
        for name, values in beside.groups.items():
            if name in self._groups:
                self._groups[name].variables.update(values)
        for host, values in beside.hosts.items():
            if host in self.hosts:
                self.hosts[host].update(values)

    def resolve(self) -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
        """The variables of every host and its groups without `all`, outer groups first.

        Deeper groups win over outer ones; among groups of one depth the higher `ansible_group_priority`, then the
        alphabetically last; a host's own variables win over all groups.
        """
        parents = self._parents()
        depths = self._depths(parents)
        groups_of: dict[str, set[str]] = {host: set() for host in self.hosts}
        for name, group in self._groups.items():
            for host in group.hosts:
                groups_of[host].add(name)
        resolved = {}
        for host, own in self.hosts.items():
            names = {ALL} | groups_of[host]
            waiting = list(names)
            while waiting:
                further = parents[waiting.pop()] - names
                names |= further
                waiting.extend(further)
            ordered = sorted(names, key=lambda name: (depths[name], self._priority(name), name))
            variables: dict[str, Any] = {}
            for name in ordered:
                variables.update(self._groups[name].variables)
            labels = tuple(name for name in ordered if name not in (ALL, UNGROUPED))
            resolved[host] = ({**variables, **own}, labels)
        return resolved

    def _parents(self) -> dict[str, set[str]]:
        parents: dict[str, set[str]] = {name: set() for name in self._groups}
        for name, group in self._groups.items():
            for child in group.children:
                parents.setdefault(child, set()).add(name)
        return parents

    def _depths(self, parents: dict[str, set[str]]) -> dict[str, int]:
        """The longest way down from `all`, which has depth 0."""
        try:
            order = tuple(TopologicalSorter(parents).static_order())
        except CycleError as error:
            loop = " > ".join(reversed(error.args[1]))
            raise ConfigError(f"groups contain each other: {loop}", hint="take one of them out of `children`") from None
        depths: dict[str, int] = {}
        for name in order:
            depths[name] = 0 if name == ALL else 1 + max((depths[parent] for parent in parents[name]), default=0)
        return depths

    def _priority(self, name: str) -> int:
        given = str(self._groups[name].variables.get(_PRIORITY, 1))
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else 1
