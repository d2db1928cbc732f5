"""How the machines of a lab are called, and which of them somebody means. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.specs.errors import UsageError

GREEK = ("alpha", "beta", "gamma", "delta", "epsilon")
MAX_NODES = 64


def node_names(count: int) -> tuple[str, ...]:
    """`alpha` to `epsilon`, then `node06` and on."""
    if not 1 <= count <= MAX_NODES:
        raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {count}")
    return (*GREEK[:count], *(f"node{number:02}" for number in range(len(GREEK) + 1, count + 1)))


def find_node(wanted: str, names: Sequence[str]) -> str:
    """The node of this name, or of this number in the order of the inventory, from 1."""
    if wanted in names:
        return wanted
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return names[int(wanted) - 1]
    raise UsageError(f"the lab has no node '{wanted}'", hint=f"name one of {', '.join(names)}, or 1 to {len(names)}")
