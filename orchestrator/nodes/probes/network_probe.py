"""Ask a machine for its network and its packet filter: one command, one round trip, and nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.firewall_answers import read_firewall
from orchestrator.nodes.sudo import root_prefix
from orchestrator.specs.firewall import mark_of
from orchestrator.specs.network import Interface, NetworkFacts
from orchestrator.specs.numbers import whole

# A constant; the peers' addresses are its arguments. Rules of a packet filter are root's to read: where the user is not
# root, `sudo -n` is tried, which never asks for a password and fails at once where one is needed.
SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin
say() { printf '%s=%s\n' "$1" "$2"; }
lines() { key=$1; while IFS= read -r line; do say "$key" "$line"; done; }
there() { command -v "$1" >/dev/null 2>&1; }
of() { [ -r "$1" ] && read -r value <"$1" 2>/dev/null && printf %s "$value"; }
ip -4 -o addr show 2>/dev/null | lines address
for here in /sys/class/net/*; do
  name=${here##*/}; marks=
  [ -d "$here/wireless" ] || [ -e "$here/phy80211" ] && marks="$marks wifi"
  [ -e "$here/tun_flags" ] && marks="$marks tun"
  [ -d "$here/bridge" ] && marks="$marks bridge"
  [ -e "$here/device" ] && marks="$marks device"
  kind=$(sed -n 's/^DEVTYPE=//p' "$here/uevent" 2>/dev/null)
  say interface "$name|$(of "$here/mtu")|$(of "$here/flags")|$(of "$here/operstate")|$(of "$here/speed")|$(
    of "$here/duplex")|$(of "$here/type")|$kind$marks|$(of "$here/address")"
done
own=$(uname -n)
{ getent ahostsv4 "$own" || getent hosts "$own"; } 2>/dev/null | lines own
towards=; zone=
for peer in "$@"; do
  ip -4 neigh show to "$peer" 2>/dev/null | lines neighbour
  [ -n "$towards" ] || towards=$(ip -4 -o route get "$peer" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
done
if [ "$(id -u)" = 0 ]; then as=; say root itself
elif sudo -n true 2>/dev/null; then as="sudo -n"; say root sudo
else as=false; fi
if there ufw; then
  say tool ufw
  [ -r /etc/ufw/ufw.conf ] && sed -n 's/^ENABLED=/ufw_enabled=/p' /etc/ufw/ufw.conf
  $as ufw show added 2>/dev/null | lines ufw
fi
if there firewall-cmd; then
  say tool firewalld
  if systemctl is-active --quiet firewalld 2>/dev/null; then state=running
  else state=$($as firewall-cmd --state 2>/dev/null); fi
  say firewalld_state "$state"
  [ "$state" = running ] && zone=$($as firewall-cmd --get-zone-of-interface="$towards" 2>/dev/null ||
    $as firewall-cmd --get-default-zone 2>/dev/null)
  if [ -n "$zone" ]; then
    say firewalld_zone "$zone"
    $as firewall-cmd --zone="$zone" --list-all 2>/dev/null | lines firewalld
  fi
fi
if there nft; then
  say tool nftables
  say nft "$($as nft -j list ruleset 2>/dev/null)"
fi
if there iptables; then
  say tool iptables
  $as iptables -S 2>/dev/null | lines iptables
fi
exit 0
"""

TIMEOUT_S = 30
"""firewalld's and ufw's programs are written in Python and take their time on a busy machine."""

_AS_ROOT: Mapping[str, tuple[str, ...]] = {"itself": (), "sudo": ("sudo", "-n")}
_UP = 0x1
_ARPHRD_LOOPBACK, _ARPHRD_PPP, _ARPHRD_NONE = "772", "512", "65534"
_ADDRESS = re.compile(r"^\d+:\s+(?P<name>[^\s@]+)\S*\s+inet\s+(?P<here>[\d.]+)(?:\s+peer\s+[\d.]+)?/(?P<prefix>\d+)")
_NEIGHBOUR = re.compile(r"^(?P<address>[\d.]+) .*\blladdr (?P<mac>\S+) (?!.*FAILED)")


def ask(node: Node, *, project: str, peers: Sequence[str] = ()) -> NetworkFacts:
    """Its network, as it says itself. `peers` are addresses whose way and neighbour entry are looked up, not dialled.

    Raises `CommandFailedError` where it has no POSIX shell, and what `Node.run` raises.
    """
    answer = node.run([*root_prefix(node), "sh", "-c", SCRIPT, "sh", *peers], timeout_s=TIMEOUT_S)
    found = parse(answer.check("asking for the network", hint="it needs a POSIX shell and iproute2"), project=project)
    return replace(found, as_root=root_prefix(node) or found.as_root)


def parse(text: str, *, project: str) -> NetworkFacts:
    """The script's lines into facts. What is not understood is left out: it is asked of machines of all kinds."""
    answers: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        answers.setdefault(key, []).append(value)
    addresses: dict[str, list[str]] = {}
    for match in filter(None, map(_ADDRESS.match, answers.get("address", ()))):
        addresses.setdefault(match["name"], []).append(f"{match['here']}/{match['prefix']}")
    found = [_interface(value, addresses) for value in answers.get("interface", ())]
    own = [line.split()[0] for line in answers.get("own", ()) if line.strip()]
    neighbours = filter(None, map(_NEIGHBOUR.match, answers.get("neighbour", ())))
    return NetworkFacts(
        interfaces=tuple(interface for interface in found if interface is not None),
        own_name_answers=tuple(dict.fromkeys(address for address in own if ":" not in address)),
        neighbours={match["address"]: match["mac"] for match in neighbours},
        wall=read_firewall(answers),
        mark=mark_of(project),
        as_root=_AS_ROOT.get("".join(answers.get("root", ()))),
    )


def _interface(text: str, addresses: dict[str, list[str]]) -> Interface | None:
    parts = text.split("|")
    if len(parts) != 9:
        return None
    name, mtu, flags, state, speed, duplex, hardware, marks, mac = parts
    return Interface(
        name=name,
        addresses=tuple(addresses.get(name, ())),
        mtu=whole(mtu),
        up=bool(_flags(flags) & _UP) and state not in ("down", "lowerlayerdown"),
        speed_mbit=whole(speed) or None,  # -1: the driver does not know
        duplex=duplex if duplex in ("full", "half") else "",
        kind=_kind(hardware, set(marks.split())),
        mac=mac,
    )


def _flags(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return _UP


def _kind(hardware: str, marks: set[str]) -> str:
    if hardware == _ARPHRD_LOOPBACK:
        return "loopback"
    if marks & {"wifi", "wlan"}:
        return "wifi"
    if marks & {"wireguard", "tun", "ppp"} or hardware in (_ARPHRD_PPP, _ARPHRD_NONE):
        return "vpn"
    if "bridge" in marks:
        return "bridge"
    return "ethernet" if "device" in marks else "virtual"
