"""Operate a running lab: status, cut and heal the network, power off and on, set link speeds, log in."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.lab.host import docker_host
from orchestrator.lab.network import UNSHAPED, parse_rate
from orchestrator.lab.node import NodeStatus, SimulatedNode
from orchestrator.lab.state import (
    REAL_TIME,
    USER,
    Lab,
    LabClock,
    exclusive,
    find_node,
    identity_file,
    known_hosts_file,
    require_lab,
    save_lab,
)
from orchestrator.lab.up_down import Report, switch_on
from orchestrator.specs.errors import UsageError


def status() -> tuple[NodeStatus, ...]:
    """Status of every node, in the order of the inventory."""
    lab = require_lab()
    if lab.engine == "process":
        return tuple(
            NodeStatus(name=node.name, address=node.address, state="up", engine="process") for node in lab.nodes
        )
    with docker_host() as client, ThreadPoolExecutor(len(lab.nodes)) as pool:
        return tuple(pool.map(lambda node: SimulatedNode(client, lab.name, node).look(), lab.nodes))


def cut(wanted: Sequence[str]) -> tuple[str, ...]:
    """Pull the network cable of these nodes; their names."""
    return _on_each(wanted, SimulatedNode.cut)


def heal(wanted: Sequence[str]) -> tuple[str, ...]:
    """Plug it in again."""
    return _on_each(wanted, SimulatedNode.heal)


def kill(wanted: Sequence[str]) -> tuple[str, ...]:
    """Cut the power of these nodes, all at once."""
    return _on_each(wanted, SimulatedNode.switch_off)


def start(wanted: Sequence[str], report: Report, clock: LabClock = REAL_TIME) -> tuple[str, ...]:
    """Switch these nodes on again, and wait for them."""
    with exclusive(), _chosen(wanted) as (_, nodes):
        off = [node for node in nodes if not node.is_on()]
        if off:
            switch_on(off, report, clock)
        return tuple(node.name for node in off)


def set_link(link: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Give these nodes (all, where none is named) a link of this speed, now and after every start."""
    if link != UNSHAPED:
        parse_rate(link)
    with exclusive(), _chosen(wanted or require_lab().names) as (lab, nodes):
        changed = tuple(node.name for node in nodes)
        for node in nodes:
            if node.is_on():
                node.shape(link)
        save_lab(
            replace(lab, nodes=tuple(replace(node, link=link) if node.name in changed else node for node in lab.nodes))
        )
    return changed


def shell_command(wanted: str, command: Sequence[str]) -> tuple[str, ...]:
    """The ssh command that logs in on a node as its user, and knows the node by its own key alone."""
    lab = require_lab()
    _require_machines(lab)
    name = find_node(wanted, lab.names)
    address = next(node.address for node in lab.nodes if node.name == name)
    options = (
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={known_hosts_file()}",
        "GlobalKnownHostsFile=/dev/null",
    )
    settings = [part for option in options for part in ("-o", option)]
    target = ("-i", str(identity_file()), *settings, f"{USER}@{address}")
    # sshd gives the words to a shell as one line: quoted here, once
    return ("ssh", "-F", "/dev/null", *target, *((shlex.join(command),) if command else ()))


def _on_each(wanted: Sequence[str], action: Callable[[SimulatedNode], None]) -> tuple[str, ...]:
    with _chosen(wanted) as (_, nodes), ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(action, nodes))
        return tuple(node.name for node in nodes)


@contextmanager
def _chosen(wanted: Sequence[str]) -> Iterator[tuple[Lab, list[SimulatedNode]]]:
    """The selected nodes of the running lab, each once."""
    lab = require_lab()
    _require_machines(lab)
    chosen = {find_node(name, lab.names) for name in wanted}
    with docker_host() as client:
        yield lab, [SimulatedNode(client, lab.name, node) for node in lab.nodes if node.name in chosen]


def _require_machines(lab: Lab) -> None:
    if lab.engine == "process":
        raise UsageError(
            "the nodes of this lab are processes of this computer: no machine to log in on, no cable, no power",
            hint="for machines: orch lab down, then orch lab up (needs a Docker Engine)",
        )
