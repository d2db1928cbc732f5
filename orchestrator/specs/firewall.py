"""A node's packet filter: what it lets in, and the words by which each tool opens and closes it. Pure.

What a run needs is all TCP among the inventory's addresses: gloo and NCCL talk on ports of the kernel's choice, not on
the rendezvous port alone. Ranks use the host's network, so the filter's input side decides, and Docker's own rules,
which stand beside it, do not matter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
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


def open_commands(firewall: Firewall, source: str, mark: str) -> Iterator[tuple[str, ...]]:
    """Commands that let this address in, to be run as root: before every rule that might refuse it."""
    if firewall.tool == UFW:
        yield (UFW, "prepend", "allow", "proto", "tcp", "from", source, "to", "any", "comment", mark)
    elif firewall.tool == FIREWALLD:
        for place in firewall.places:
            yield from _firewalld("add", place, source, known_mark(FIREWALLD, mark))
    elif firewall.tool == NFTABLES:
        for place in firewall.places:
            match = ("ip", "saddr", source, "meta", "l4proto", "tcp", "accept", "comment", f'"{mark}"')
            yield ("nft", "insert", "rule", *place.split(), *match)
    elif firewall.tool == IPTABLES:
        yield _iptables("--insert", source, mark)


def close_commands(tool: str, opening: Opening) -> Iterator[tuple[str, ...]]:
    """Commands that remove exactly this opening again, to be run as root."""
    if tool == UFW:
        yield (UFW, "delete", "allow", "proto", "tcp", "from", opening.source, "to", "any")
    elif tool == FIREWALLD:
        yield from _firewalld("remove", opening.place, opening.source, opening.mark)
    elif tool == NFTABLES:
        yield ("nft", "delete", "rule", *opening.place.split(), "handle", opening.handle)
    elif tool == IPTABLES:
        yield _iptables("--delete", opening.source, opening.mark)


def line_to_paste(firewall: Firewall, sources: Sequence[str], mark: str) -> str:
    """One line for a person's shell on the node; empty where no firewall tool is known."""
    stand_in = "$peer" if len(sources) > 1 else "".join(sources)
    commands = [" ".join(_quoted(word) for word in argv) for argv in open_commands(firewall, stand_in, mark)]
    line = "; ".join(f"sudo {command}" for command in commands)
    return f"for peer in {' '.join(sources)}; do {line}; done" if line and len(sources) > 1 else line


def _quoted(word: str) -> str:
    """Words are ours or addresses; only those of firewalld and nftables hold spaces or quotes."""
    if '"' in word and "$" not in word:
        return f"'{word}'"
    return '"' + word.replace('"', '\\"') + '"' if '"' in word else word


def _firewalld(action: str, zone: str, source: str, priority: str) -> Iterator[tuple[str, ...]]:
    """Now and for later: a reload would take away what others changed for now alone."""
    rule = f'rule priority="{priority}" family="ipv4" source address="{source}" protocol value="tcp" accept'
    for permanent in ((), ("--permanent",)):
        yield ("firewall-cmd", *permanent, f"--zone={zone}", f"--{action}-rich-rule={rule}")


def _iptables(action: str, source: str, mark: str) -> tuple[str, ...]:
    match = ("--protocol", "tcp", "--source", source, "--match", "comment", "--comment", mark)
    return (IPTABLES, "--wait", action, INPUT, *match, "--jump", "ACCEPT")
