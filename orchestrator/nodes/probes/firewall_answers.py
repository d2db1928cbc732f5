"""What ufw, firewalld, nftables and iptables say of themselves, read into one picture."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.specs.firewall import FIREWALLD, INPUT, IPTABLES, NFTABLES, UFW, Firewall, Opening

Said = Mapping[str, Sequence[str]]
"""By the key of `network_probe.SCRIPT`: its lines."""

_OTHERS_TABLES = re.compile(r"^(firewalld|docker-bridges|libvirt.*|lxc|incus|fail2ban|f2b-.*)$")
"""Tables of programs that keep them for purposes of their own, in nftables."""
_RICH = re.compile(
    r'^rule(?: priority="(?P<priority>-?\d+)")?(?: family="ipv4")?(?: source address="(?P<source>[\d./]+)")?'
    r'(?: protocol value="tcp"| port port="(?P<ports>[\d-]+)" protocol="tcp") accept$'
)


def read_firewall(said: Said) -> Firewall:
    """The filter that counts: a front-end that is on, else whose rules drop something, else one that is merely there.

    A front-end keeps its rules in nftables or iptables, where nobody else should write: it comes first.
    """
    tools = said.get("tool", ())
    root = "root" in said
    seen = [_READERS[tool](said) for tool in (UFW, FIREWALLD, NFTABLES, IPTABLES) if tool in tools]
    for wanted in (True, None, False):
        for firewall in seen:
            if firewall.active is wanted:
                return firewall
    return Firewall(active=False if root else None)


def _ufw(said: Said) -> Firewall:
    """`ENABLED` is anybody's to read, the rules are root's."""
    enabled = [value.strip().strip("\"'") for value in said.get("ufw_enabled", ())]
    openings = tuple(filter(None, map(_ufw_opening, said.get("ufw", ())))) if "root" in said else None
    return Firewall(tool=UFW, active=enabled[-1] == "yes" if enabled else None, openings=openings)


def _ufw_opening(line: str) -> Opening | None:
    """A line of `ufw show added`: `ufw allow from 10.0.0.1 to any port 22 proto tcp comment 'x'`, or `ufw allow 22`."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if words[:2] != ["ufw", "allow"] or {"out", "in", "app"} & set(words[2:4]):
        return None
    if len(words) == 3 or (len(words) == 5 and words[3] == "comment"):
        ports, _, protocol = words[2].partition("/")
        return Opening(ports=ports, mark=_after(words, "comment")) if protocol in ("", "tcp") else None
    destination, source = _after(words, "to") or "any", _after(words, "from") or "any"
    if ":" in source or destination != "any" or _after(words, "proto") not in ("", "tcp"):
        return None
    source = "" if source == "any" else source
    return Opening(source=source, ports=_after(words, "port"), mark=_after(words, "comment"))


def _firewalld(said: Said) -> Firewall:
    root = "root" in said
    state = "".join(said.get("firewalld_state", ()))
    zone = "".join(said.get("firewalld_zone", ()))
    if not (root and zone):
        return Firewall(tool=FIREWALLD, active=state == "running" if state or root else None)
    openings: list[Opening] = []
    for line in map(str.strip, said.get("firewalld", ())):
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


def _nftables(said: Said) -> Firewall:
    try:
        entries = json.loads("".join(said.get("nft", ())))["nftables"]
    except (ValueError, KeyError, TypeError):
        return Firewall(tool=NFTABLES)
    rules = [entry["rule"] for entry in entries if "rule" in entry]
    of_iptables = {_place(rule) for rule in rules if any("xt" in part for part in rule["expr"])}
    chains = {
        _place(chain, "name"): chain
        for entry in entries
        if (chain := entry.get("chain")) and chain["family"] in ("ip", "inet")
    }
    places = tuple(
        place
        for place, chain in chains.items()
        if chain.get("hook") == "input"
        and chain.get("type") == "filter"
        and not _OTHERS_TABLES.match(chain["table"])
        and not (chain["table"] == "filter" and chain["name"] == INPUT)  # iptables' own, asked through it
        and place not in of_iptables
        and (chain.get("policy") == "drop" or _nft_refuses(place, rules))
    )
    openings = [opening for rule in rules if _place(rule) in places and (opening := _nft_opening(rule))]
    return Firewall(tool=NFTABLES, active=bool(places), openings=tuple(openings), places=places)


def _place(item: Mapping[str, Any], name: str = "chain") -> str:
    return f"{item['family']} {item['table']} {item[name]}"


def _nft_refuses(place: str, rules: Sequence[Mapping[str, Any]], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a rule of this chain, or of one that it leads to, drops or rejects."""
    for rule in rules:
        if _place(rule) != place:
            continue
        for part in rule["expr"]:
            if "drop" in part or "reject" in part:
                return True
            target = (part.get("jump") or part.get("goto") or {}).get("target", "")
            further = f"{rule['family']} {rule['table']} {target}"
            if target and further not in seen and _nft_refuses(further, rules, seen | {further}):
                return True
    return False


def _nft_opening(rule: Mapping[str, Any]) -> Opening | None:
    """A rule that asks for nothing but source, TCP and port. What it counts does not matter."""
    found = {"source": "", "ports": ""}
    accepts = False
    for part in rule["expr"]:
        if "accept" in part:
            accepts = True
        elif match := part.get("match"):
            left, right = match["left"], match["right"]
            payload = left.get("payload", {}) if isinstance(left, dict) else {}
            if payload == {"protocol": "ip", "field": "saddr"} and isinstance(right, (str, dict)):
                found["source"] = right if isinstance(right, str) else _nft_prefix(right)
            elif payload == {"protocol": "tcp", "field": "dport"}:
                found["ports"] = _nft_ports(right)
            elif not (right == "tcp" and left in ({"meta": {"key": "l4proto"}}, _PROTOCOL)):
                return None
            if match["op"] != "==" or found["source"] == "?":
                return None
        elif "counter" not in part:
            return None
    mark, handle = str(rule.get("comment", "")), str(rule.get("handle", ""))
    return Opening(**found, mark=mark, place=_place(rule), handle=handle) if accepts else None


_PROTOCOL = {"payload": {"protocol": "ip", "field": "protocol"}}


def _nft_prefix(right: Mapping[str, Any]) -> str:
    prefix = right.get("prefix")
    return f"{prefix['addr']}/{prefix['len']}" if prefix else "?"


def _nft_ports(right: Any) -> str:
    several = right["set"] if isinstance(right, dict) and "set" in right else [right]
    texts = [":".join(map(str, one["range"])) if isinstance(one, dict) and "range" in one else one for one in several]
    return ",".join(map(str, texts))


def _iptables(said: Said) -> Firewall:
    lines = said.get("iptables", ())
    if not lines:
        return Firewall(tool=IPTABLES, active=None)
    rules = [shlex.split(line) for line in lines]
    openings = tuple(filter(None, (_iptables_opening(rule) for rule in rules)))
    active = ["-P", INPUT, "DROP"] in rules or _iptables_refuses(INPUT, rules)
    return Firewall(tool=IPTABLES, active=active, openings=openings)


def _iptables_refuses(chain: str, rules: Sequence[list[str]], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a rule of this chain, or of one it leads to, drops or rejects. fail2ban's shut out single addresses."""
    for rule in rules:
        if rule[:2] != ["-A", chain]:
            continue
        target = _after(rule, "-j") or _after(rule, "-g")
        if target in ("DROP", "REJECT"):
            return True
        further = target not in seen and not target.startswith("f2b-")
        if further and _iptables_refuses(target, rules, seen | {target}):
            return True
    return False


def _iptables_opening(rule: list[str]) -> Opening | None:
    """A rule of INPUT that asks for nothing but source, TCP and port."""
    if rule[:2] != ["-A", INPUT]:
        return None
    given = dict(_options(rule[2:]))
    if given.pop("-j", "") != "ACCEPT" or given.pop("-p", "") not in ("tcp", ""):
        return None
    source, mark = given.pop("-s", ""), given.pop("--comment", "")
    ports = given.pop("--dport", given.pop("--dports", ""))
    if given:
        return None
    return Opening(source=source.removesuffix("/32"), ports=ports, mark=mark)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of an option and its value; modules that only carry others of these are left out."""
    key = ""
    for word in words:
        if word.startswith("-") or word == "!":
            if key:
                yield key, ""
            key = word
        elif key == "-m" and word in ("tcp", "comment", "multiport"):
            key = ""
        else:
            yield key, word
            key = ""
    if key:
        yield key, ""


def _after(words: Sequence[str], word: str) -> str:
    """What follows this word; empty where it does not occur."""
    return words[words.index(word) + 1] if word in words[:-1] else ""


_READERS = {UFW: _ufw, FIREWALLD: _firewalld, NFTABLES: _nftables, IPTABLES: _iptables}
