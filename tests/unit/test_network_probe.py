"""Facts about network and packet filter, read from the output of a machine's tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import network_probe
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.firewall import Firewall, Opening
from orchestrator.specs.network import Interface

LAPTOP = """\
address=1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
address=2: enp3s0    inet 192.168.1.10/24 brd 192.168.1.255 scope global dynamic enp3s0\\       valid_lft 3600sec
address=2: enp3s0    inet 192.168.1.200/24 scope global secondary enp3s0\\       valid_lft forever
address=5: wg0    inet 10.9.0.2/32 scope global wg0\\       valid_lft forever preferred_lft forever
address=7: ppp0    inet 10.64.64.64 peer 10.112.112.112/32 scope global ppp0\\       valid_lft forever
address=9: eth0@if10    inet 172.30.0.3/16 brd 172.30.255.255 scope global eth0\\       valid_lft forever
interface=enp3s0|1500|0x1003|up|1000|full|1| device|02:00:00:00:00:01
interface=wlp2s0|1500|0x1002|down|||1|wlan wifi device|02:00:00:00:00:02
interface=wg0|1420|0x91|unknown|||65534|wireguard|
interface=ppp0|1492|0x10d1|unknown|||512|ppp|
interface=tun0|1500|0x1091|unknown|10|full|65534| tun|
interface=docker0|1500|0x1003|down|-1|unknown|1|bridge bridge|02:42:00:00:00:01
interface=eth0|1500|0x1003|up|10000|full|1||02:42:00:00:00:03
interface=lo|65536|0x9|unknown|||772||00:00:00:00:00:00
interface=broken
own=127.0.1.1       STREAM ana-laptop
own=127.0.1.1       DGRAM
own=::1 ip6
neighbour=192.168.1.11 dev enp3s0 lladdr 02:00:00:00:00:11 REACHABLE
neighbour=192.168.1.12 dev enp3s0  FAILED
"""


def wall(text: str, *, root: bool = True) -> Firewall:
    return network_probe.parse(("root=itself\n" if root else "") + text, project="lab").wall


def test_a_laptop_with_everything() -> None:
    facts = network_probe.parse(LAPTOP, project="lab")
    by_name = {interface.name: interface for interface in facts.interfaces}
    assert by_name["enp3s0"] == Interface(
        name="enp3s0",
        addresses=("192.168.1.10/24", "192.168.1.200/24"),
        mtu=1500,
        speed_mbit=1000,
        duplex="full",
        kind="ethernet",
        mac="02:00:00:00:00:01",
    )
    kinds = {name: interface.kind for name, interface in by_name.items()}
    assert kinds == {
        "enp3s0": "ethernet",
        "wlp2s0": "wifi",
        "wg0": "vpn",
        "ppp0": "vpn",
        "tun0": "vpn",
        "docker0": "bridge",
        "eth0": "virtual",
        "lo": "loopback",
    }
    assert [name for name, interface in by_name.items() if not interface.up] == ["wlp2s0", "docker0"]
    assert (by_name["docker0"].speed_mbit, by_name["docker0"].duplex) == (None, "")
    assert by_name["ppp0"].addresses == ("10.64.64.64/32",)
    assert by_name["eth0"].addresses == ("172.30.0.3/16",)
    assert facts.own_name_answers == ("127.0.1.1",)
    assert facts.neighbours == {"192.168.1.11": "02:00:00:00:00:11"}
    assert facts.mark == "orch:lab"


def test_this_computer() -> None:
    facts = network_probe.ask(LocalNode(), project="lab", peers=("127.0.0.2",))
    loopback = next(interface for interface in facts.interfaces if interface.name == "lo")
    assert (loopback.kind, loopback.mtu, loopback.up) == ("loopback", 65536, True)
    assert "127.0.0.1/8" in loopback.addresses


def test_a_machine_without_a_shell() -> None:
    node = FakeNode(name="beta", programs=lambda argv, stdin, timeout_s: (127, "", "sh: not found"))
    with pytest.raises(CommandFailedError, match="asking for the network failed"):
        network_probe.ask(node, project="lab")


def test_no_tool_at_all() -> None:
    assert wall("") == Firewall(active=False)
    assert wall("", root=False) == Firewall(active=None)


UFW = """\
tool=ufw
ufw_enabled=yes
ufw=Added user rules (see 'ufw status' for running firewall):
ufw=ufw allow 22/tcp
ufw=ufw allow OpenSSH
ufw=ufw allow 53/udp
ufw=ufw allow from 10.0.0.11 proto tcp comment 'orch:lab'
ufw=ufw allow from 10.0.0.0/24 to any port 12355 proto tcp
ufw=ufw allow from 10.0.0.12
ufw=ufw allow in on eth0 to any port 80 proto tcp
ufw=ufw deny from 10.0.0.99
ufw=ufw allow from fe80::/10
tool=iptables
iptables=-P INPUT DROP
iptables=-A INPUT -j ufw-before-input
"""


def test_ufw_comes_before_the_iptables_that_it_writes() -> None:
    assert wall(UFW) == Firewall(
        tool="ufw",
        active=True,
        openings=(
            Opening(ports="22"),
            Opening(ports="OpenSSH"),
            Opening(source="10.0.0.11", mark="orch:lab"),
            Opening(source="10.0.0.0/24", ports="12355"),
            Opening(source="10.0.0.12"),
            Opening(ports="80", interface="eth0"),
        ),
    )


def test_ufw_without_roots_rights() -> None:
    reported = "tool=ufw\nufw_enabled=yes\ntool=iptables\n"
    assert wall(reported, root=False) == Firewall(tool="ufw", active=True, openings=None)


def test_ufw_that_is_off_leaves_it_to_what_is_on() -> None:
    reported = "tool=ufw\nufw_enabled=no\ntool=iptables\niptables=-P INPUT DROP\n"
    assert wall(reported) == Firewall(tool="iptables", active=True, openings=())
    assert wall("tool=ufw\nufw_enabled=no\n") == Firewall(tool="ufw", active=False, openings=())


FIREWALLD = """\
tool=firewalld
firewalld_state=running
firewalld_zone=public
firewalld=public (active)
firewalld=  target: default
firewalld=  interfaces: eth0
firewalld=  services: dhcpv6-client ssh
firewalld=  ports: 12355/tcp 4000-4010/tcp 53/udp
firewalld=  source-ports: 77/tcp
firewalld=  rich rules:
firewalld=\trule priority="-7" family="ipv4" source address="10.0.0.11" protocol value="tcp" accept
firewalld=\trule family="ipv4" source address="10.0.0.0/24" port port="22" protocol="tcp" accept
firewalld=\trule family="ipv4" source address="10.0.0.66" drop
"""


def test_firewalld() -> None:
    assert wall(FIREWALLD) == Firewall(
        tool="firewalld",
        active=True,
        places=("public",),
        openings=(
            Opening(ports="12355", place="public"),
            Opening(ports="4000:4010", place="public"),
            Opening(source="10.0.0.11", mark="-7", place="public"),
            Opening(source="10.0.0.0/24", ports="22", place="public"),
        ),
    )
    trusting = wall(FIREWALLD.replace("target: default", "target: ACCEPT"))
    assert Opening(place="public") in (trusting.openings or ())


def test_firewalld_without_roots_rights_and_at_rest() -> None:
    assert wall("tool=firewalld\nfirewalld_state=running\n", root=False) == Firewall(tool="firewalld", active=True)
    assert wall("tool=firewalld\nfirewalld_state=inactive\n") == Firewall(tool="firewalld", active=False)


def chain(name: str, **changes: Any) -> dict[str, Any]:
    values = {"family": "inet", "table": "filter", "name": name, "type": "filter", "hook": "input", "policy": "accept"}
    return {"chain": {**values, **changes}}


def rule(chain: str, *expr: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"rule": {"family": "inet", "table": "filter", "chain": chain, "handle": 7, "expr": list(expr), **changes}}


def match(left: dict[str, Any], right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


SOURCE = {"payload": {"protocol": "ip", "field": "saddr"}}
PORT = {"payload": {"protocol": "tcp", "field": "dport"}}
TCP = match({"meta": {"key": "l4proto"}}, "tcp")
ACCEPT: dict[str, Any] = {"accept": None}
DROP: dict[str, Any] = {"drop": None}


def nft(*entries: dict[str, Any]) -> Firewall:
    return wall(f"tool=nftables\nnft={json.dumps({'nftables': [{'metainfo': {}}, *entries]})}\n")


def test_nftables() -> None:
    network = {"prefix": {"addr": "10.0.0.0", "len": 24}}
    found = nft(
        chain("input", policy="drop"),
        rule("input", match({"ct": {"key": "state"}}, ["established"], "in"), ACCEPT),
        rule("input", match(SOURCE, "10.0.0.11"), TCP, ACCEPT, comment="orch:lab"),
        rule("input", match(SOURCE, "10.0.0.12"), TCP, ACCEPT, comment="mine"),
        rule("input", match(SOURCE, "10.0.0.13"), TCP, ACCEPT, comment="orch:other"),
        rule("elsewhere", match(SOURCE, "10.0.0.14"), TCP, ACCEPT, comment="orch:lab"),
        rule("input", match(SOURCE, network), match(PORT, 12355), {"counter": {"packets": 0}}, ACCEPT),
        rule("input", match(PORT, {"set": [22, {"range": [80, 90]}]}), ACCEPT),
        rule("input", match(SOURCE, "10.0.0.66", "!="), ACCEPT),
        rule("input", match({"meta": {"key": "iifname"}}, "lo"), ACCEPT),
    )
    place = "inet filter input"
    assert found == Firewall(
        tool="nftables",
        active=True,
        places=(place,),
        openings=(
            Opening(source="10.0.0.11", mark="orch:lab", place=place, handle="7"),
            Opening(source="10.0.0.13", mark="orch:other", place=place, handle="7"),
        ),
    )
    assert found.known_openings is None, "whom the others let in is not read"


def test_nftables_that_refuses_in_a_chain_of_its_own() -> None:
    jump = {"jump": {"target": "guarded"}}
    back = {"jump": {"target": "input"}}
    guarded = chain("guarded", hook=None, type=None, policy=None)
    assert nft(chain("input"), guarded, rule("input", jump), rule("guarded", back), rule("guarded", DROP)).active
    assert not nft(chain("input"), guarded, rule("input", jump), rule("guarded", back)).active


@pytest.mark.parametrize(
    "entries",
    [
        (chain("INPUT", family="ip", policy="drop"),),
        (chain("filter_INPUT", table="firewalld"), rule("filter_INPUT", DROP, table="firewalld")),
        (chain("forward", hook="forward", policy="drop"),),
        (chain("input", family="ip6", policy="drop"),),
    ],
    ids=("iptables", "firewalld", "forward", "ip6"),
)
def test_nftables_tables_of_others_do_not_count(entries: tuple[dict[str, Any], ...]) -> None:
    assert nft(*entries) == Firewall(tool="nftables", active=False, openings=())


def test_nftables_without_roots_rights() -> None:
    assert wall("tool=nftables\nnft=\n", root=False) == Firewall(tool="nftables", active=None)


IPTABLES = """\
tool=iptables
iptables=-P INPUT ACCEPT
iptables=-N LIMITS
iptables=-A INPUT -i lo -j ACCEPT
iptables=-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables=-A INPUT -s 10.0.0.11/32 -p tcp -m comment --comment "orch:lab" -j ACCEPT
iptables=-A INPUT -p tcp -m tcp --dport 12355 -j ACCEPT
iptables=-A INPUT -p tcp -m multiport --dports 80,443 -j ACCEPT
iptables=-A INPUT ! -s 10.0.0.66/32 -p tcp -j ACCEPT
iptables=-A FORWARD -s 10.0.0.9/32 -j ACCEPT
iptables=-A INPUT -j LIMITS
"""


def test_iptables() -> None:
    found = wall(IPTABLES + "iptables=-A LIMITS -p tcp -j REJECT --reject-with icmp-port-unreachable\n")
    assert found == Firewall(
        tool="iptables",
        active=True,
        openings=(Opening(source="10.0.0.11", mark="orch:lab"),),
    )
    assert found.known_openings is None, "whom the others let in is not read"
    assert wall(IPTABLES).active is False


def test_fail2ban_is_no_firewall() -> None:
    banned = "iptables=-A INPUT -j f2b-sshd\niptables=-A f2b-sshd -s 10.0.0.66/32 -j REJECT\n"
    assert wall("tool=iptables\niptables=-P INPUT ACCEPT\n" + banned).active is False


def test_docker_is_no_firewall() -> None:
    docker = "iptables=-P FORWARD DROP\niptables=-A FORWARD -j DOCKER-USER\niptables=-A DOCKER-USER -j DROP\n"
    assert wall("tool=iptables\niptables=-P INPUT ACCEPT\n" + docker).active is False


IIF = {"meta": {"key": "iifname"}}
STATE = {"ct": {"key": "state"}}


@pytest.mark.parametrize(
    ("conditions", "active"),
    [
        ((), True),
        ((match(SOURCE, "@blacklist_ipv4"),), False),
        ((match(SOURCE, "10.0.0.0/8", "!="),), True),
        ((match(STATE, "invalid"),), False),
        ((match(STATE, ["new", "untracked"], "in"),), True),
        ((match(IIF, "tailscale0"),), False),
        ((match(IIF, "enp3s0"), TCP), True),
        ((match(PORT, 22),), False),
        ((match(PORT, {"range": [1024, 65535]}),), True),
        (({"limit": {"rate": 1}},), False),
    ],
)
def test_nftables_that_drops_what_no_peer_sends_is_not_active(
    conditions: tuple[dict[str, Any], ...], active: bool
) -> None:
    assert nft(chain("input"), rule("input", *conditions, DROP)).active is active


@pytest.mark.parametrize(
    ("rules", "active"),
    [
        ("-A INPUT -j ts-input|-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP", False),
        ("-A INPUT -j KUBE-FIREWALL|-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP", False),
        ("-A INPUT -m conntrack --ctstate INVALID -j DROP", False),
        ("-A INPUT -p udp -j DROP", False),
        ("-A INPUT -p tcp -m tcp --dport 22 -j REJECT --reject-with tcp-reset", False),
        ("-A INPUT -i docker0 -j DROP", False),
        ("-A INPUT -j REJECT --reject-with icmp-host-prohibited", True),
        ("-A INPUT ! -i lo -p tcp -m tcp --dport 1024:65535 -j DROP", True),
        ("-A INPUT ! -s 10.0.0.0/8 -j DROP", True),
        ("-A INPUT -m conntrack --ctstate NEW -j GUARD|-A GUARD -j DROP", True),
    ],
)
def test_iptables_that_drops_what_no_peer_sends_is_not_active(rules: str, active: bool) -> None:
    lines = "".join(f"iptables={rule}\n" for rule in rules.split("|"))
    assert wall("tool=iptables\niptables=-P INPUT ACCEPT\n" + lines).active is active


def test_ufw_openings_that_say_in() -> None:
    message = "tool=ufw\nufw_enabled=yes\nufw=ufw allow in from 10.0.0.0/8\nufw=ufw allow in on eth1 from 10.9.0.0/16\n"
    assert wall(message).openings == (
        Opening(source="10.0.0.0/8"),
        Opening(source="10.9.0.0/16", interface="eth1"),
    )


def test_a_whole_interface_is_an_opening() -> None:
    """Administrators write it so; those of loopback and containers let no peer in."""
    one = Opening(interface="eth0")
    ufw = "tool=ufw\nufw_enabled=yes\nufw=ufw allow in on eth0\nufw=ufw allow in on docker0\n"
    assert wall(ufw).openings == (one,)
    assert one.admits("10.0.0.1", "eth0")
    assert not one.admits("10.0.0.1", "eth1")
    assert not one.admits("10.0.0.1")


def test_a_rich_rule_of_an_administrator_is_an_opening() -> None:
    rich = '\trule family="ipv4" source address="10.0.0.0/24" accept'
    message = f"tool=firewalld\nfirewalld_state=running\nfirewalld_zone=public\nfirewalld={rich}\n"
    assert wall(message).openings == (Opening(source="10.0.0.0/24", place="public"),)


@pytest.mark.parametrize(
    "message",
    [
        'nft={"nftables":[{"rule":{"expr":[{"match":1},3,null]}},{"chain":7},{"set":{"elem":"x"}},9]}',
        'nft={"nftables":{"rule":1}}',
        "nft=" + "[" * 100_000,
        "iptables=-A INPUT -s 'open -j ACCEPT\niptables=-A INPUT -s 10.0.0.1000/99 -j ACCEPT",
        "ufw=ufw allow from 10.0.0.256",
        'firewalld=rule family="ipv4" source address="1.2.3" port port="²" protocol="tcp" accept',
    ],
)
def test_rubbish_of_a_filter_opens_nothing(message: str) -> None:
    found = wall(f"tool=nftables\ntool=iptables\ntool=ufw\ntool=firewalld\nfirewalld_zone=public\n{message}\n")
    assert not found.openings
