"""Machines as words of a command line: `192.168.1.11`, `ana@host:2222`, `node[1-5]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from contract.hostlist import HostlistError, expand
from orchestrator.specs.errors import UsageError
from orchestrator.specs.inventory_files.inventory_import import ImportedNode
from orchestrator.specs.inventory_types import HOST, USER

_WORD = re.compile(rf"(?:(?P<user>{USER[1:-1]})@)?(?P<host>{HOST[1:-1]})(?::(?P<port>[1-9][0-9]{{0,4}}))?")


def machines_of(words: Sequence[str], *, user: str | None = None) -> tuple[ImportedNode, ...]:
    """One machine per word, ranges written out; addresses are called node1, node2, …. UsageError names a bad word."""
    machines: list[ImportedNode] = []
    seen: set[str] = set()
    for word in _expanded(words):
        parts = _WORD.fullmatch(word)
        if parts is None:
            raise UsageError(f"{word!r} is not a machine", hint="expected 192.168.1.11, ana@host:2222 or node[1-5]")
        if (place := f"{parts['host'].lower()}:{parts['port'] or 22}") in seen:
            continue
        seen.add(place)
        values: dict[str, Any] = {"address": parts["host"]}
        if login := parts["user"] or user:
            values["user"] = login
        if parts["port"]:
            values["port"] = int(parts["port"])
        is_address = re.fullmatch("[0-9.]+", parts["host"])
        name = f"node{len(machines) + 1}" if is_address else parts["host"].partition(".")[0].lower()
        taken = {machine.name for machine in machines}
        machines.append(ImportedNode(name=f"{name}-{len(machines) + 1}" if name in taken else name, values=values))
    return tuple(machines)


def _expanded(words: Sequence[str]) -> list[str]:
    try:
        return [one for word in words for one in expand(word)]
    except HostlistError as error:
        raise UsageError(str(error), hint="expected 192.168.1.11, ana@host:2222 or node[1-5]") from None
