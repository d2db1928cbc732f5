"""A node's packet filter: its tool, its state, and what it lets in. Pure.

What a run needs is all TCP among the inventory's addresses: gloo and NCCL talk on ports of the kernel's choice, not on
the rendezvous port alone. Ranks use the host's network, so the filter's input side decides, and Docker's own rules,
which stand beside it, do not matter.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from ipaddress import IPv4Network

UFW, FIREWALLD, NFTABLES, IPTABLES = "ufw", "firewalld", "nftables", "iptables"
OWN_MARKS = "orch:"
"""Beginning of the comments of orch's rules, whatever the project."""
INPUT = "INPUT"
"""The chain that iptables has for what is meant for this machine."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A rule that lets TCP in."""

    source: str = ""
    """An IPv4 address, or a network with its prefix length; empty for anyone."""
    ports: str = ""
    """`12355`, `1024:65535`, several with commas; empty for all."""
    interface: str = ""
    """The interface that it is about; empty for all."""
    mark: str = ""
    """Comment of the rule, by which ours are known; firewalld's have none, there it is the rule's priority."""
    place: str = ""
    """nftables: family, table and chain; firewalld: the zone."""
    handle: str = ""
    """nftables' number of the rule."""

    def admits(self, address: str, interface: str = "") -> bool:
        """Return whether it lets this address, which comes in by this interface (empty: not known), reach every
        port."""
        on_it = self.interface in ("", interface)
        return not self.ports and on_it and IPv4Network(address).subnet_of(self.network)

    @property
    def sources(self) -> str:
        """Sources that it lets in, for messages."""
        return (self.source or "anyone") + (f" on {self.interface}" if self.interface else "")

    @property
    def network(self) -> IPv4Network:
        return IPv4Network(self.source or "0.0.0.0/0", strict=False)


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """The packet filter of one node, as far as its user may know."""

    tool: str = ""
    """`ufw`, `firewalld`, `nftables`, `iptables`; empty where none was seen."""
    active: bool | None = None
    """True if it drops packets; None if the user may not query it."""
    openings: tuple[Opening, ...] | None = None
    """All of ufw and firewalld; of nftables and iptables those of orch alone. None where they could not be read."""
    places: tuple[str, ...] = ()
    """Places that need an opening: nftables' chains, firewalld's zone towards the peers."""

    @property
    def known_openings(self) -> tuple[Opening, ...] | None:
        """Openings of all owners; None where they are not known. In nftables and iptables the order of rules, sets and
        chains decide whom one lets in: there only a connection tells."""
        return self.openings if self.tool in (UFW, FIREWALLD) else None


def mark_of(project: str) -> str:
    """The comment that rules of this project carry."""
    return f"{OWN_MARKS}{project}"


def known_mark(tool: str, mark: str) -> str:
    """The mark as this tool's rules show it.

    firewalld's rules have no comments. A priority below 0 lets a rule stand before those that refuse, so a number made
    from the project's name is both mark and place.
    """
    return str(-1000 - zlib.crc32(mark.encode()) % 30000) if tool == FIREWALLD else mark
