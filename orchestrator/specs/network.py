"""Facts of `orch doctor` about the network path from every node to every other. Plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.specs.firewall import Firewall


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of a node. None stands for what the kernel does not tell."""

    name: str
    addresses: tuple[str, ...] = ()
    """IPv4 with prefix length: `192.168.1.10/24`."""
    mtu: int | None = None
    up: bool = True
    speed_mbit: int | None = None
    duplex: str = ""
    kind: str = ""
    """`ethernet`, `wifi`, `vpn`, `bridge`, `loopback`, `virtual`."""
    mac: str = ""


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """The network of one node, as it says itself."""

    interfaces: tuple[Interface, ...] = ()
    own_name_answers: tuple[str, ...] = ()
    """Addresses that its own host name leads to there."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Hardware addresses that answer in this node's own network segment, by peer address."""
    wall: Firewall = field(default_factory=Firewall)
    mark: str = "orch"
    """Comment that firewall rules of this project carry."""
    as_root: tuple[str, ...] | None = None
    """Words to put before a command that root has to run; None where that takes a password."""

    @property
    def firewall(self) -> str:
        return self.wall.tool

    @property
    def firewall_active(self) -> bool | None:
        return self.wall.active


class Ended(StrEnum):
    """End of a try to exchange something over TCP."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    RESET = "reset"
    NO_ROUTE = "no route"
    CUT_SHORT = "cut short"
    """Small packets pass, large ones do not."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """One try: from the node that holds it to a port of a peer, from inside the training image."""

    peer: str
    port: int
    master: bool
    """True if it is the rendezvous port; a port of the kernel's choice otherwise."""
    ended: Ended
    ms: float = 0.0
    detail: str = ""
