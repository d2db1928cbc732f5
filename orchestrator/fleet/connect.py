"""Nodes of the inventory as connections."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from orchestrator.fleet.runs.records import recorded_runs
from orchestrator.nodes.call_log import logged
from orchestrator.nodes.interface import Node
from orchestrator.nodes.processes.files import processes_folder
from orchestrator.specs.labels import LABEL_RUN

if TYPE_CHECKING:  # a command that reads a record alone needs neither the models of the inventory nor an engine
    from orchestrator.specs.inventory import NodeSpec


def connect(spec: NodeSpec) -> Node:
    """The node of this spec. Nothing is opened yet: the first use does that."""
    from orchestrator.nodes.local import LocalNode
    from orchestrator.nodes.processes.engine import ProcessEngine
    from orchestrator.nodes.ssh import SshNode  # with docker and paramiko, which no record on this computer needs

    if spec.engine == "process":
        return LocalNode(spec.name, spec.address, ProcessEngine(spec.name))
    if spec.connection == "local":
        return LocalNode(spec.name, spec.address)
    return SshNode(spec)


_connect: ContextVar[Callable[[NodeSpec], Node]] = ContextVar("connect", default=connect)


@contextmanager
def connecting_by(other: Callable[[NodeSpec], Node]) -> Iterator[None]:
    """Let `connected` use `other` to make its nodes: tests pass fake machines."""
    token = _connect.set(other)
    try:
        yield
    finally:
        _connect.reset(token)


@contextmanager
def connected_for(specs: Sequence[NodeSpec], run: str | None) -> Iterator[tuple[Node, ...]]:
    """The nodes to ask about a run, or about the newest that this controller launched if none is named.

    A run of `orch launch --engine process` is held by processes of this computer: no machine is asked about it.
    """
    wanted = run or next((record.run_id for record in recorded_runs()), None)
    holders = [
        node
        for node in stand_ins(specs)
        if wanted and any(held.labels[LABEL_RUN].startswith(wanted) for held in node.engine.containers({LABEL_RUN: ""}))
    ]
    if holders:
        yield tuple(holders)
        return
    with connected(specs) as nodes:
        yield nodes


def stand_ins(specs: Sequence[NodeSpec]) -> list[Node]:
    """Nodes that hold a run and are processes of this computer, other than those that the inventory declares."""
    declared = {spec.name for spec in specs if spec.engine == "process"}
    folders = sorted(processes_folder().glob("*/"))
    if not folders:
        return []
    from orchestrator.nodes.local import LocalNode
    from orchestrator.nodes.processes.engine import ProcessEngine

    nodes = [LocalNode(folder.name, engine=ProcessEngine(folder.name)) for folder in folders]
    return [node for node in nodes if node.name not in declared and node.engine.containers({LABEL_RUN: ""})]


FILES_PER_NODE, OTHER_FILES = 6, 256
"""Open files of a node: the connection, the user's ssh-agent, the log of its container; twice that."""


def allow_files(nodes: int) -> None:
    """Raise this process's limit of open files, usually 1,024, as far as so many nodes need and the system allows."""
    with suppress(ValueError, OSError):  # the first connection that does not fit says so
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OTHER_FILES + FILES_PER_NODE * nodes
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def connected(specs: Sequence[NodeSpec]) -> Iterator[tuple[Node, ...]]:
    """Nodes in the order of the specs, closed at the end."""
    allow_files(len(specs))
    nodes = tuple(logged(_connect.get()(spec)) for spec in specs)
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
