"""Parsers for the output of ufw, firewalld, nftables and iptables: one `Firewall` from all of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

from orchestrator.nodes.probes.nft_answers import NARROW, covers_dynamic, read_nftables
from orchestrator.specs.firewall import FIREWALLD, INPUT, IPTABLES, NFTABLES, OWN_MARKS, UFW, Firewall, Opening

Answers = Mapping[str, Sequence[str]]
"""Lines of the answer, by the key of `network_probe.SCRIPT`."""

_RICH = re.compile(
    r'^rule(?: priority="(?P<priority>-?\d+)")?(?: family="ipv4")?(?: source address="(?P<source>[\d./]+)")?'
    r'(?: protocol value="tcp"| port port="(?P<ports>[\d-]+)" protocol="tcp")? accept$'
)


def read_firewall(answers: Answers) -> Firewall:
    """The filter that counts: a front-end that is on, else whose rules drop something, else one that is merely there.

    A front-end keeps its rules in nftables or iptables, where no other program should write: it comes first.
    """
    tools = answers.get("tool", ())
    root = "root" in answers
    seen = [_sound(_READERS[tool](answers)) for tool in (UFW, FIREWALLD, NFTABLES, IPTABLES) if tool in tools]
    for wanted in (True, None, False):
        for firewall in seen:
            if firewall.active is wanted:
                return firewall
    return Firewall(active=False if root else None)


def _sound(firewall: Firewall) -> Firewall:
    """Drop openings whose source is no IPv4 address or network: whom they let in is unknown."""
    openings = (
        None if firewall.openings is None else tuple(item for item in firewall.openings if _is_source(item.source))
    )
    return replace(firewall, openings=openings)


def _is_source(text: str) -> bool:
    try:
        return not text or bool(IPv4Network(text, strict=False))
    except ValueError:
        return False


def _ufw(answers: Answers) -> Firewall:
    """`ENABLED` is anybody's to read, the rules are root's."""
    enabled = [value.strip().strip("\"'") for value in answers.get("ufw_enabled", ())]
    openings = tuple(filter(None, map(_ufw_opening, answers.get("ufw", ())))) if "root" in answers else None
    return Firewall(tool=UFW, active=enabled[-1] == "yes" if enabled else None, openings=openings)


def _ufw_opening(line: str) -> Opening | None:
    """A line of `ufw show added`: `ufw allow from 10.0.0.1 to any port 22 proto tcp comment 'x'`, `ufw allow 22`, or
    `ufw allow in on eth0`."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    interface = ""
    if words[:3] == ["ufw", "allow", "in"]:
        on = words[3:4] == ["on"]
        interface = "".join(words[4:5]) if on else ""
        del words[2 : 5 if on else 3]
    if NARROW.match(interface) or words[:2] != ["ufw", "allow"] or {"out", "in", "app"} & set(words[2:4]):
        return None
    if len(words) == 3 or (len(words) == 5 and words[3] == "comment"):
        ports, _, protocol = words[2].partition("/")
        return (
            Opening(ports=ports, interface=interface, mark=_after(words, "comment"))
            if protocol in ("", "tcp")
            else None
        )
    destination, source = _after(words, "to") or "any", _after(words, "from") or "any"
    if ":" in source or destination != "any" or _after(words, "proto") not in ("", "tcp"):
        return None
    source = "" if source == "any" else source
    return Opening(source=source, ports=_after(words, "port"), interface=interface, mark=_after(words, "comment"))


def _firewalld(answers: Answers) -> Firewall:
    root = "root" in answers
    state = "".join(answers.get("firewalld_state", ()))
    zone = "".join(answers.get("firewalld_zone", ()))
    if not (root and zone):
        return Firewall(tool=FIREWALLD, active=state == "running" if state or root else None)
    openings: list[Opening] = []
    for line in map(str.strip, answers.get("firewalld", ())):
        key, _, value = line.partition(": ")
        if key == "target" and value == "ACCEPT":
            openings.append(Opening(place=zone))
        elif key == "ports":
            ports = [port for port in value.split() if port.endswith("/tcp")]
            openings += [Opening(ports=port[: -len("/tcp")].replace("-", ":"), place=zone) for port in ports]
        elif rich := _RICH.match(line):
            ports_of = (rich["ports"] or "").replace("-", ":")
            openings.append(
                Opening(source=rich["source"] or "", ports=ports_of, mark=rich["priority"] or "", place=zone)
            )
    return Firewall(tool=FIREWALLD, active=True, openings=tuple(openings), places=(zone,))


def _iptables(answers: Answers) -> Firewall:
    lines = answers.get("iptables", ())
    if not lines:
        return Firewall(tool=IPTABLES, active=None)
    rules = [rule for rule in map(_iptables_words, lines) if rule]
    openings = tuple(filter(None, (_iptables_own_rule(rule) for rule in rules)))
    active = ["-P", INPUT, "DROP"] in rules or _iptables_refuses(INPUT, rules)
    return Firewall(tool=IPTABLES, active=active, openings=openings)


def _iptables_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _iptables_refuses(chain: str, rules: Sequence[list[str]], seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a rule of this chain, or of one it leads to, drops or rejects what any peer may send.

    Rules of fail2ban, Tailscale or kubelet shut out single addresses, interfaces or marks: with them alone nothing is
    filtered.
    """
    for rule in rules:
        if rule[:2] != ["-A", chain]:
            continue
        given = dict(_options(rule[2:]))
        target = given.pop("-j", "") or given.pop("-g", "")
        if not target or target in seen or not all(_meets_peers(key, value) for key, value in given.items()):
            continue
        if target in ("DROP", "REJECT") or _iptables_refuses(target, rules, seen | {target}):
            return True
    return False


def _meets_peers(key: str, value: str) -> bool:
    """Return whether a new TCP connection of any peer passes this condition; what is not known here counts as no."""
    if key in ("-m", "--comment", "--reject-with", "! -i", "! -s"):
        return True
    if key == "-p":
        return value in ("tcp", "all")
    if key in ("--ctstate", "--state"):
        return "NEW" in value.split(",")
    if key == "-i":
        return not NARROW.match(value)
    return key in ("--dport", "--dports") and covers_dynamic(value)


def _iptables_own_rule(rule: list[str]) -> Opening | None:
    """A rule of INPUT that `orch firewall` has made: one address, on all ports."""
    given = dict(_options(rule[2:]))
    source, mark = given.get("-s", ""), given.get("--comment", "")
    if rule[:2] != ["-A", INPUT] or not source or not mark.startswith(OWN_MARKS):
        return None
    return Opening(source=source.removesuffix("/32"), mark=mark)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of an option (`! -s` where it is negated) and its value.

    Modules that only carry others of these are left out.
    """
    key, negated = "", ""
    for word in words:
        if word == "!":
            negated = "! "
        elif word.startswith("-"):
            if key:
                yield key, ""
            key, negated = f"{negated}{word}", ""
        elif key == "-m" and word in ("tcp", "comment", "multiport"):
            key = ""
        else:
            yield key, word
            key = ""
    if key:
        yield key, ""


def _after(words: Sequence[str], word: str) -> str:
    """The word after this one; empty where it does not occur or is the last."""
    return words[words.index(word) + 1] if word in words[:-1] else ""


_READERS = {
    UFW: _ufw,
    FIREWALLD: _firewalld,
    NFTABLES: lambda answers: read_nftables("".join(answers.get("nft", ()))),
    IPTABLES: _iptables,
}
