"""Convert machines from other tools' files into an inventory, with notes on everything left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from contract.hostlist import HostlistError, expand, is_hostlist
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_problems import expected_of
from orchestrator.specs.inventory_files.inventory_yaml import shown, write_yaml
from orchestrator.specs.inventory_types import NAME, USER

_HEADER = """\
# Written by `orch {command}`, from {source}.
# The order of nodes is the order of ranks: the first one is the master.
# Every node may also have:
#   {keys}.
# What they mean: `orch inventory schema`, `orch docs inventory`. Check this file: `orch inventory validate`.
"""
_SPACED = re.compile(r"\s*=\s*")
"""Open MPI takes `slots = 4`, too."""
_SLOT = re.compile(r"slots=([0-9]{1,4})")
_OTHER_KIND = "if it is a file of another kind, name it: --from ssh-config, ansible or hostfile"
_COUNTED = re.compile(r"(?P<host>[^:\s]+):(?P<count>\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class ImportedNode:
    """A machine from the source: unvalidated values under the keys of an inventory."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ImportedInventory:
    """Machines of a source, and notes on what an inventory cannot hold."""

    nodes: tuple[ImportedNode, ...]
    notes: tuple[str, ...] = field(default=())
    not_for_training: Mapping[str, str] = field(default_factory=dict)
    """Reasons by name for machines that are left out unless requested by name."""


def from_hostlist(text: str) -> ImportedInventory:
    """`node[01-05]`: names that are addresses too."""
    try:
        names = expand(text)
    except HostlistError as error:
        raise ConfigError(str(error), hint="for example node[01-05] or alpha,beta") from None
    return ImportedInventory(nodes=tuple(ImportedNode(name=name, values={"address": name}) for name in names))


def from_hostfile(text: str, *, filename: str = "the hostfile") -> ImportedInventory:
    """DeepSpeed's, MPI's and PBS': `worker-1 slots=4`, or a line for each process; `#` begins a comment.

    Raises ConfigError where a line holds a second plain word: then it is a file of another kind.
    """
    nodes: list[ImportedNode] = []
    bare: dict[tuple[str, str], dict[str, Any]] = {}
    notes: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = _SPACED.sub("=", line.partition("#")[0]).split()
        for user, host, port in _targets(words[0], number, notes) if words else ():
            if len(words) == 1 and (twin := bare.get((user, host))):  # PBS and MPI: a line for each process
                twin["nproc_per_node"] = twin.get("nproc_per_node", 1) + 1
                continue
            values: dict[str, Any] = {"address": host, **({"user": user} if user else {}), **port}
            for word in words[1:]:
                key, equals, value = word.partition("=")
                if not equals:
                    place = f"{filename}:{number}: {shown(line.strip())}"
                    raise ConfigError(f"{place} is not a hostfile line: expected `worker-1 slots=4`", hint=_OTHER_KIND)
                if slots := _SLOT.fullmatch(word):
                    values["nproc_per_node"] = int(slots.group(1))
                else:
                    meant = f"; did you mean slots={value}?" if key in ("slot", "Slots", "nproc", "np", "cpu") else ""
                    notes.append(f"line {number}: {shown(word)} is not supported in an inventory{meant}")
            nodes.append(ImportedNode(name=host, values=values))
            if len(words) == 1:
                bare[user, host] = values
    return ImportedInventory(nodes=tuple(nodes), notes=tuple(notes))


def _targets(word: str, number: int, notes: list[str]) -> list[tuple[str, str, dict[str, int]]]:
    """User, host and port of the first word of a line: `ana@host`, `ssh://ana@host:22`, `node[01-04]`, `a,b`."""
    bare = word.removeprefix("ssh://").rstrip("/")
    counted = _COUNTED.fullmatch(bare)
    if counted and bare == word:
        host, count = counted["host"], counted["count"]
        notes.append(
            f"line {number}: {shown(word)} left out: is {count} a port or a number of processes? "
            f"Write `{host} slots={count}`, or give the port in the inventory"
        )
        return []
    place, port = (counted["host"], {"port": int(counted["count"])}) if counted else (bare, {})
    user, _, host = place.rpartition("@")
    try:
        return [(user, one, port) for one in (expand(host) if is_hostlist(host) else (host,))]
    except HostlistError:
        return [(user, host, port)]


def only(found: ImportedInventory, patterns: Sequence[str]) -> ImportedInventory:
    """Machines with names that match a pattern (`lab-*`); without patterns, all except those not for training."""
    notes = list(found.notes)
    if patterns:
        selected = [node for node in found.nodes if any(fnmatchcase(node.name, pattern) for pattern in patterns)]
    else:
        selected = [node for node in found.nodes if node.name not in found.not_for_training]
        for name, why in found.not_for_training.items():
            notes.append(f"{shown(name)} left out: {why}; to take it: --only {shlex.quote(name)}")
    return ImportedInventory(nodes=tuple(selected), notes=tuple(notes))


def inventory_text(
    found: ImportedInventory, *, source: str, user: str | None = None, command: str = "inventory import"
) -> tuple[str, tuple[str, ...]]:
    """A commented `inventory.yaml` that has been read back without a problem, and the notes of a person's interest."""
    if user is not None and not re.fullmatch(USER, user):
        raise UsageError(f"--user {shown(user)}: expected {expected_of(NodeSpec.model_fields['user'])}")
    notes = list(found.notes)
    nodes = _accepted(found.nodes, notes)
    if not nodes:
        raise ConfigError(f"no machines in {source} that an inventory could hold", problems=notes)
    document: dict[str, Any] = {"defaults": {"user": user}} if user else {}
    keys = ", ".join(key for key in NodeSpec.model_fields if key not in ("name", "address"))
    header = _HEADER.format(command=command, source=source if source.isprintable() else "a file", keys=keys)
    text = write_yaml({**document, "nodes": nodes}, header=header)
    parse_inventory(text, filename="the imported inventory")
    return text, tuple(notes)


def _accepted(found: Sequence[ImportedNode], notes: list[str]) -> dict[str, dict[str, Any]]:
    """Machines with a name, an address and the values that are valid; a note on everything left out."""
    nodes: dict[str, dict[str, Any]] = {}
    places: dict[tuple[str, int], str] = {}
    for machine in found:
        name = _valid_name(machine.name)
        if name is None or name in nodes:
            why = "its name cannot be converted into a node name" if name is None else f"a node {name} exists already"
            notes.append(f"{shown(machine.name)} left out: {why}")
            continue
        values = _valid_values(name, machine.values, notes)
        if values is None:
            continue
        place = (str(values["address"]).lower(), int(values.get("port", 22)))
        if place in places:
            notes.append(f"{name} left out: it has the address of {places[place]}, {place[0]} port {place[1]}")
            continue
        if name != machine.name:
            notes.append(f"{shown(machine.name)} is called {name}")
        places[place] = name
        nodes[name] = values
    return nodes


def _valid_name(name: str) -> str | None:
    name = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:63].strip("-._")
    if name.isdecimal():
        name = f"node{name}"
    return name if re.fullmatch(NAME, name) else None


def _valid_values(name: str, values: Mapping[str, Any], notes: list[str]) -> dict[str, Any] | None:
    values = dict(values)
    try:
        NodeSpec.model_validate({**values, "name": name})
    except ValidationError as error:
        wrong = {str(detail["loc"][0]) for detail in error.errors(include_url=False)}
        for key in sorted(wrong):
            expected = expected_of(NodeSpec.model_fields[key])
            notes.append(f"{name}: {key} {shown(values.pop(key, None))} not taken over; expected {expected}")
        if "address" in wrong:
            notes.append(f"{name} left out, as it has no address")
            return None
    return values
