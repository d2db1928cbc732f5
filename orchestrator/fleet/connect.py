"""From the inventory's words to machines that can be talked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.seam import Node
from orchestrator.nodes.ssh import SshNode
from orchestrator.specs.inventory import NodeSpec


def connect(spec: NodeSpec) -> Node:
    """The node of this spec. Nothing is opened yet: the first use does that."""
    if spec.connection == "local":
        return LocalNode(spec.name, spec.address)
    return SshNode(spec)


_connect: ContextVar[Callable[[NodeSpec], Node]] = ContextVar("connect", default=connect)


@contextmanager
def connecting_by(other: Callable[[NodeSpec], Node]) -> Iterator[None]:
    """Within it, `connected` makes its nodes so: tests give machines that exist in memory alone."""
    token = _connect.set(other)
    try:
        yield
    finally:
        _connect.reset(token)


@contextmanager
def connected(specs: Sequence[NodeSpec]) -> Iterator[tuple[Node, ...]]:
    """Nodes in the order of the specs, closed at the end."""
    nodes = tuple(_connect.get()(spec) for spec in specs)
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
