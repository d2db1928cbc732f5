"""Which nodes could be talked to at all, and which of them are the same machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.checks.node_network import one_machine
from orchestrator.specs.finding import Finding, Severity
from orchestrator.specs.node_report import Examined
from orchestrator.specs.reach import Reach

SLOW_MS = 300.0
"""A command over SSH takes 2 to 20 ms on a LAN, and up to 100 ms while two cores play five machines."""

# how the connection ended: id, cause
_OBSTACLES = {
    Reach.NO_ADDRESS: ("reach.no_address", "no name server, and no hosts file of this computer, knows that name"),
    Reach.NO_ANSWER: (
        "reach.no_answer",
        "the machine is off, asleep or elsewhere, its address has changed, or a firewall drops what arrives",
    ),
    Reach.REFUSED: (
        "reach.refused",
        "the machine is there, but no SSH server listens on that port (or a firewall rejects it)",
    ),
    Reach.KEY_UNKNOWN: ("reach.key_unknown", "nobody has said yet that this key is that machine's"),
    Reach.KEY_CHANGED: (
        "reach.key_changed",
        "the machine was installed anew, another machine has its address, or somebody is in between",
    ),
    Reach.LOGIN: (
        "reach.login",
        "the key is not among the user's authorized_keys there, or the user is another one",
    ),
    Reach.NO_KEY: ("reach.no_key", "neither ~/.ssh nor your ssh-agent holds a key, and orch never asks for passwords"),
    Reach.IDENTITY_MISSING: (
        "reach.identity_missing",
        "`identity` in the inventory names a file of this computer that is not there, or is no private key",
    ),
    Reach.KEY_LOCKED: (
        "reach.key_locked",
        "the key needs its passphrase, which orch never asks for, and your ssh-agent does not hold it",
    ),
    Reach.OTHER: ("reach.failed", "what answers there does not speak SSH as expected, or broke off"),
}


def out_of_reach(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A node that could not be asked."""
    for node in fleet:
        if node.out_of_reach:
            id, cause = _OBSTACLES[node.out_of_reach.why]
            yield Finding(
                id=id,
                severity=Severity.ERROR,
                node=node.name,
                message=node.out_of_reach.message,
                cause=cause,
                fix=node.out_of_reach.hint,
            )


def not_asked(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A part that gave no answer: what it would have shown is unknown, and that is said."""
    for node in fleet:
        for part, why in node.silent.items():
            yield Finding(
                id="doctor.not_asked",
                severity=Severity.WARNING,
                node=node.name,
                message=f"no answer about its {part}: {why}",
                cause="the checks that rest on it were left out",
                fix=f"orch doctor --nodes {node.name}",
            )


def slow(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """A round trip far beyond that of a LAN."""
    for node in fleet:
        if node.round_trip_ms is not None and node.round_trip_ms > SLOW_MS:
            yield Finding(
                id="reach.slow",
                severity=Severity.WARNING,
                node=node.name,
                message=f"a command there takes {node.round_trip_ms:.0f} ms to come back",
                cause="weak Wi-Fi, a way through a VPN or the internet, or a machine under heavy load",
                fix=f"ping -c 20 {node.spec.address}; on it: uptime",
            )


def same_address(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Two names that lead to one address: the inventory refuses equal words, but not two names for one."""
    seen: dict[str, str] = {}
    for node in fleet:
        if node.facts is None or node.spec.engine == "process":
            continue
        first = seen.setdefault(node.facts.address, node.name)
        if first != node.name:
            yield Finding(
                id="reach.same_address",
                severity=Severity.ERROR,
                node=node.name,
                message=f"{node.name} and {first} both have the address {node.facts.address}",
                cause="two names of the inventory lead to one machine, or two machines claim one address",
                fix=f"on each machine: ip -4 address; then correct nodes.{node.name}.address, or remove one of them",
            )


def same_machine_id(fleet: Sequence[Examined]) -> Iterator[Finding]:
    """Two machines with one machine-id: cloned disks, to which DHCP gives one address sooner or later.

    Two names for one machine are told by its engine's id.
    """
    seen: dict[str, Examined] = {}
    for node in fleet:
        if node.facts is None or not node.facts.machine_id or node.spec.engine == "process":
            continue
        first = seen.setdefault(node.facts.machine_id, node)
        if first is not node and not one_machine(first, node):
            yield Finding(
                id="reach.same_machine_id",
                severity=Severity.WARNING,
                node=node.name,
                message=f"{node.name} and {first.name} have one machine-id, {node.facts.machine_id[:12]}…",
                cause="the disk of one was cloned for the other: DHCP may give both the same address",
                fix="on one of them: sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot",
            )


UNSEEN = (out_of_reach, not_asked)
"""What could not be looked at."""
CHECKS = (*UNSEEN, slow, same_address, same_machine_id)
