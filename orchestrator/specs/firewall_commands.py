"""Commands that open a node's firewall to an address, and that close it again, of each tool that orch knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.specs.firewall import FIREWALLD, INPUT, IPTABLES, NFTABLES, UFW, Firewall, Opening, known_mark


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
