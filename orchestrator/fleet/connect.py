"""From the inventory's words to machines that can be talked to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.process_engine import ProcessEngine
from orchestrator.nodes.seam import Node
from orchestrator.nodes.ssh import SshNode
from orchestrator.specs.inventory import NodeSpec


def connect(spec: NodeSpec) -> Node:
    """The node of this spec. Nothing is opened yet: the first use does that."""
    if spec.engine == "process":
        return LocalNode(spec.name, spec.address, ProcessEngine(spec.name))
    if spec.connection == "local":
        return LocalNode(spec.name, spec.address)
    return SshNode(spec)


@contextmanager
def connected(specs: Sequence[NodeSpec]) -> Iterator[tuple[Node, ...]]:
    """Nodes in the order of the specs, closed at the end."""
    nodes = tuple(connect(spec) for spec in specs)
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
