"""Ansible's groups and hosts, and which variable a host ends up with: the same precedence as Ansible's own.

https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html#how-variables-are-merged
"""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.specs.errors import ConfigError

ALL, UNGROUPED = "all", "ungrouped"
_PRIORITY = "ansible_group_priority"


@dataclass(kw_only=True)
class Group:
    """One group, gathered from every place that mentions it."""

    variables: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)


class AnsibleGroups:
    """All groups of an inventory by name. Every host and every group is in `all`."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, Any]] = {}
        """A host's own variables, in the order in which hosts were first named."""
        self._groups: dict[str, Group] = {ALL: Group()}

    def group(self, name: str) -> Group:
        """The group of this name, created where it is new."""
        return self._groups.setdefault(name, Group())

    def add_host(self, host: str, group: str, own: dict[str, Any]) -> None:
        """Put a host into a group. Where its own variables are given several times, the last value counts."""
        self.group(group).hosts[host] = None
        self.hosts.setdefault(host, {}).update(own)

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
