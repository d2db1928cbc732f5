"""Parser for `nft -j list ruleset`. The result has the same form as every other filter's: specs/firewall.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.specs.firewall import INPUT, NFTABLES, OWN_MARKS, Firewall, Opening

_OTHERS_TABLES = re.compile(r"^(firewalld|docker-bridges|libvirt.*|lxc|incus|fail2ban|f2b-.*)$")
"""Tables of programs that keep them for purposes of their own, in nftables."""


def read_nftables(text: str) -> Firewall:
    try:
        entries = json.loads(text)["nftables"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Firewall(tool=NFTABLES)
    rules = [rule for rule in _objects(entries, "rule", "chain") if isinstance(rule.get("expr"), list)]
    of_iptables = {_place(rule) for rule in rules if any("xt" in part for part in _parts(rule))}
    chains = {_place(chain, "name"): chain for chain in _objects(entries, "chain", "name")}
    places = tuple(
        place
        for place, chain in chains.items()
        if chain["family"] in ("ip", "inet")
        and chain.get("hook") == "input"
        and chain.get("type") == "filter"
        and not _OTHERS_TABLES.match(chain["table"])
        and not (chain["table"] == "filter" and chain["name"] == INPUT)  # iptables' own, asked through it
        and place not in of_iptables
        and (chain.get("policy") == "drop" or _nft_refuses(place, rules))
    )
    own = tuple(_own_rules(rule for rule in rules if _place(rule) in places))
    return Firewall(tool=NFTABLES, active=bool(places), openings=own, places=places)


def _objects(entries: Any, kind: str, name: str) -> Iterator[dict[str, Any]]:
    """The rules or chains among nftables' entries that say where they stand."""
    for entry in entries if isinstance(entries, list) else ():
        item = entry.get(kind) if isinstance(entry, dict) else None
        if isinstance(item, dict) and all(isinstance(item.get(key), str) for key in ("family", "table", name)):
            yield item


def _parts(rule: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [part for part in rule["expr"] if isinstance(part, dict)]


def _place(item: Mapping[str, Any], name: str = "chain") -> str:
    return f"{item['family']} {item['table']} {item[name]}"


def _nft_refuses(place: str, rules: Sequence[Mapping[str, Any]], seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a rule of this chain, or of one that it leads to, drops or rejects what any peer may send."""
    for rule in rules:
        if _place(rule) != place:
            continue
        for part in _parts(rule):
            if "drop" in part or "reject" in part:
                return True
            target = part.get("jump") or part.get("goto")
            further = f"{rule['family']} {rule['table']} {target.get('target')}" if isinstance(target, dict) else ""
            if further and further not in seen and _nft_refuses(further, rules, seen | {further}):
                return True
            if not _nft_meets_peers(part):
                break
    return False


def _nft_meets_peers(part: Mapping[str, Any]) -> bool:
    """Return whether a new TCP connection of any peer passes this condition; what is not known here counts as no."""
    if not part.keys().isdisjoint(("counter", "log")):
        return True
    match = part.get("match")
    if not isinstance(match, dict):
        return False
    left, right, differs = match.get("left"), match.get("right"), match.get("op") == "!="
    if left == _SOURCE:
        return differs
    if left in (_L4PROTO, _PROTOCOL):
        return right == "tcp" and not differs
    if left == {"ct": {"key": "state"}}:
        return ("new" in (right if isinstance(right, list) else [right])) is not differs
    if left in _INTERFACE:
        return differs or (isinstance(right, str) and not NARROW.match(right))
    return left == _DPORT and not differs and covers_dynamic(_nft_ports(right))


def _own_rules(rules: Iterable[Mapping[str, Any]]) -> Iterator[Opening]:
    """Rules that `orch firewall` has made: one address each, on all ports."""
    for rule in rules:
        mark, handle = str(rule.get("comment", "")), str(rule.get("handle", ""))
        matches = [part["match"] for part in _parts(rule) if isinstance(part.get("match"), dict)]
        source = next((match.get("right") for match in matches if match.get("left") == _SOURCE), None)
        if mark.startswith(OWN_MARKS) and isinstance(source, str):
            yield Opening(source=source, mark=mark, place=_place(rule), handle=handle)


_INTERFACE = ({"meta": {"key": "iifname"}}, {"meta": {"key": "iif"}})
_SOURCE = {"payload": {"protocol": "ip", "field": "saddr"}}
_DPORT = {"payload": {"protocol": "tcp", "field": "dport"}}
_PROTOCOL = {"payload": {"protocol": "ip", "field": "protocol"}}
_L4PROTO = {"meta": {"key": "l4proto"}}
NARROW = re.compile(r"^(lo$|docker|br-|virbr|veth|cni|flannel|cali|lxc|tun|tap|wg|tailscale|zt|ppp)")
"""Interfaces over which no peer of the LAN comes."""
_DYNAMIC = (32768, 60999)
"""Ports that the kernel gives out by itself (net.ipv4.ip_local_port_range): where gloo and NCCL listen."""


def _nft_ports(right: Any) -> str:
    several = right["set"] if isinstance(right, dict) and isinstance(right.get("set"), list) else [right]
    ranges = [
        one["range"] if isinstance(one, dict) and isinstance(one.get("range"), list) else [one] for one in several
    ]
    return ",".join(":".join(map(str, one[:2])) for one in ranges)


def covers_dynamic(ports: str) -> bool:
    """Return whether these ports (`22,1024:65535`) hold all that the kernel gives out."""
    for part in ports.split(","):
        if (match := _PORTS.fullmatch(part)) and int(match[1]) <= _DYNAMIC[0] and int(match[2]) >= _DYNAMIC[1]:
            return True
    return False


_PORTS = re.compile(r"([0-9]{1,5})[:-]([0-9]{1,5})")
