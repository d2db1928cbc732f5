"""Nodes that could not be reached, and nodes that are the same machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks.node_network import one_machine
from orchestrator.specs.facts import NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.node_report import Examined
from orchestrator.specs.reach import Reach

SLOW_MS = 300.0
"""A command over SSH takes 2 to 20 ms on a LAN, and up to 100 ms while two cores play five machines."""

_OBSTACLES = {
    Reach.NO_ADDRESS: "reach.no_address",
    Reach.NO_ANSWER: "reach.no_answer",
    Reach.REFUSED: "reach.refused",
    Reach.KEY_UNKNOWN: "reach.key_unknown",
    Reach.KEY_CHANGED: "reach.key_changed",
    Reach.LOGIN: "reach.login",
    Reach.NO_KEY: "reach.no_key",
    Reach.IDENTITY_MISSING: "reach.identity_missing",
    Reach.KEY_LOCKED: "reach.key_locked",
    Reach.PROXY_COMMAND: "reach.proxy_command",
    Reach.SHELL: "reach.shell",
    Reach.OTHER: "reach.failed",
}


def out_of_reach(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node that could not be asked."""
    for node in fleet:
        if node.out_of_reach:
            why = node.out_of_reach
            yield Finding.of(_OBSTACLES[why.why], node.name, message=why.message, hint=why.hint)


def not_asked(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A part that gave no answer: what it would have shown is unknown, and that is said."""
    for node in fleet:
        for part, why in node.silent.items():
            yield Finding.of("doctor.not_asked", node.name, part=part, why=why)


def slow(node: Examined) -> Iterator[Finding]:
    """A round trip far beyond that of a LAN."""
    if node.round_trip_ms is not None and node.round_trip_ms > SLOW_MS:
        yield Finding.of("reach.slow", node.name, round_trip_ms=node.round_trip_ms, address=node.spec.address)


def same_address(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Two names that lead to one address: the inventory refuses equal words, but not two names for one."""
    seen: dict[str, str] = {}
    for node in fleet:
        if node.facts is None or node.spec.engine == "process":
            continue
        first = seen.setdefault(node.facts.address, node.name)
        if first != node.name:
            yield Finding.of("reach.same_address", node.name, first=first, address=node.facts.address)


def same_machine_id(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Two machines with one machine-id: cloned disks, to which DHCP gives one address sooner or later.

    Two names for one machine are recognized by its engine's id.
    """
    seen: dict[str, Examined] = {}
    for node in fleet:
        if node.facts is None or not node.facts.machine_id or node.spec.engine == "process":
            continue
        first = seen.setdefault(node.facts.machine_id, node)
        if first is not node and not one_machine(first, node):
            yield Finding.of(
                "reach.same_machine_id", node.name, first=first.name, machine_id=node.facts.machine_id[:12]
            )


UNSEEN = (out_of_reach, not_asked)
"""Checks that find nodes that could not be examined."""


def same_machine(fleet: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Two names for one machine: two ranks would share its limits and its lock."""
    seen: dict[str, str] = {}
    for facts in fleet:
        engine = facts.engine.id if facts.engine and facts.engine.kind == "docker" else ""
        if not engine:
            continue
        if engine in seen:
            yield Finding.of("inventory.same_machine", facts.name, first=seen[engine], engine=engine[:14])
        seen.setdefault(engine, facts.name)


LAUNCH_CHECKS = (same_machine,)
NODE_CHECKS = (slow,)
CHECKS = (*UNSEEN, same_address, same_machine_id)
