"""Faults between machines that all answer the controller: those that make runs hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.lab.conftest import NAMES
from tests.lab.faults.host import PORT
from tests.lab.faults.lan import Lan, broken, inventory, rules

_NEW = "-p tcp --tcp-flags SYN,ACK SYN"
"""The first packet of a connection: answers still pass."""
_TUN = """
open(my $tun, "+<", "/dev/net/tun") or die $!;
my $wish = pack("a16 s x22", "tun9", 0x1001);
ioctl($tun, 0x400454ca, $wish) or die $!;
sleep 600;
"""


@contextmanager
def passes_the_master_port_alone(lan: Lan, node: str) -> Iterator[None]:
    peers = f"INPUT --source {lan.peers(node)} {_NEW}"
    with rules(lan, node, f"{peers} --dport {PORT} --jump ACCEPT", f"{peers} --jump DROP"):
        yield


@contextmanager
def blocks_the_master_port_alone(lan: Lan, node: str) -> Iterator[None]:
    with rules(lan, node, f"INPUT --source {lan.peers(node)} -p tcp --dport {PORT} --jump DROP"):
        yield


@contextmanager
def lets_no_peer_in(lan: Lan, node: str) -> Iterator[None]:
    with rules(lan, node, f"INPUT --source {lan.peers(node)} {_NEW} --jump DROP"):
        yield


@contextmanager
def reaches_no_peer(lan: Lan, node: str) -> Iterator[None]:
    with rules(lan, node, f"OUTPUT --destination {lan.peers(node)} {_NEW} --jump DROP"):
        yield


@contextmanager
def one_way(lan: Lan, here: str, there: str) -> Iterator[None]:
    """Refuse connections from here to there; the other direction is open."""
    with rules(lan, there, f"INPUT --source {lan.address(here)} {_NEW} --jump DROP"):
        yield


@contextmanager
def cut_off_from_peers(lan: Lan, node: str) -> Iterator[None]:
    """The controller still reaches it: a VLAN of its own, a guest Wi-Fi."""
    peers = lan.peers(node)
    with rules(lan, node, f"INPUT --source {peers} --jump DROP", f"OUTPUT --destination {peers} --jump DROP"):
        yield


@contextmanager
def isolated_clients(lan: Lan) -> Iterator[None]:
    """Isolate the clients: each node reaches the router, and no other node."""
    with ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(rules(lan, name, f"INPUT --source {lan.peers(name)} --jump DROP"))
        yield


@contextmanager
def black_hole(lan: Lan, node: str) -> Iterator[None]:
    """Drop large packets to peers on the way, silently."""
    large = f"OUTPUT --destination {lan.peers(node)} -p tcp --match length --length 1300:65535 --jump DROP"
    with rules(lan, node, large):
        yield


@contextmanager
def mtu(lan: Lan, node: str, value: int) -> Iterator[None]:
    with broken(lan, node, f"ip link set dev eth0 mtu {value}", "ip link set dev eth0 mtu 1500"):
        yield


@contextmanager
def tunnel(lan: Lan, node: str, address: str) -> Iterator[None]:
    """A VPN's interface that is up, with this address; what is sent into it goes nowhere."""
    lan.root(node, "mkdir -p /dev/net; [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200")
    lan.begin(node, ("perl", "-e", _TUN))
    lan.until(node, "ip link show dev tun9 >/dev/null 2>&1")
    try:
        lan.root(node, f"ip link set dev tun9 up; ip address add {address} dev tun9")
        yield
    finally:
        lan.root(node, "pkill -u root -x perl")
        lan.until(node, "! ip link show dev tun9 >/dev/null 2>&1")


@contextmanager
def second_interface_in_the_subnet(lan: Lan, node: str) -> Iterator[None]:
    with tunnel(lan, node, f"{lan.free_address(77)}/24"):
        yield


@contextmanager
def route_through_the_vpn(lan: Lan, node: str, peer: str) -> Iterator[None]:
    """Leave the routes as a VPN does that claims the LAN's own addresses."""
    with tunnel(lan, node, "10.99.0.1/24"):
        lan.root(node, f"ip route add {lan.address(peer)}/32 dev tun9")
        yield


@contextmanager
def behind_a_port_forward(lan: Lan, node: str) -> Iterator[None]:
    """Reach the node at an address that none of its interfaces has; its key there was accepted by the user."""
    address = lan.free_address(92)
    with (
        broken(lan, node, f"ip route add local {address} dev lo", f"ip route delete local {address} dev lo"),
        inventory(lan, node, address=address),
    ):
        path = lan.orch.folder / "forwarded.yaml"
        path.write_text(f"nodes: {{{node}: {{address: {address}, user: orch}}}}\n")
        assert lan.orch("trust", "-n", node, "--yes", "-i", str(path)).code == 0
        yield


@contextmanager
def address_taken_twice(lan: Lan, node: str, of: str) -> Iterator[None]:
    """Another machine holds the address too; it keeps quiet about it, so that the lab stays in order."""
    make = "sysctl -qw net.ipv4.conf.all.arp_ignore=1; ip link add again type bridge; ip link set dev again up"
    make = f"{make}; ip address add {lan.address(of)}/32 dev again"
    with broken(lan, node, make, "ip link delete again; sysctl -qw net.ipv4.conf.all.arp_ignore=0"):
        yield


@contextmanager
def loopback_address(lan: Lan, name: str) -> Iterator[None]:
    """This very computer, by an address that only itself reaches."""
    with inventory(lan, name, address="127.0.1.1", connection="local", workspace=str(lan.orch.folder / "here")):
        yield
