"""Machines that cannot be talked to, or that are not who they seem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from orchestrator.lab.node import new_key_pair
from tests.lab.faults.lan import Lan, broken, inventory, written

_SSHD = "kill -HUP $(pgrep -o -x sshd)"
"""Command that lets sshd read its files again, in the same process: the machine lives as long as its sshd."""
_LISTENS = "ss -Hltn 'sport = :{port}' | grep -q ."


@contextmanager
def powered_off(lan: Lan, node: str) -> Iterator[None]:
    assert lan.orch("lab", "kill", node).code == 0
    try:
        yield
    finally:
        assert lan.orch("lab", "start", node).code == 0


@contextmanager
def cable_pulled(lan: Lan, node: str) -> Iterator[None]:
    assert lan.orch("lab", "cut", node).code == 0
    try:
        yield
    finally:
        assert lan.orch("lab", "heal", node).code == 0


@contextmanager
def sshd_on_another_port(lan: Lan, node: str) -> Iterator[None]:
    """Move sshd to another port: port 22 is closed, as with a stopped sshd."""
    moved = written(lan, node, "/etc/ssh/sshd_config.d/fault.conf", "Port 2022\n")
    with _sshd_reads(lan, node, f"{_LISTENS.format(port=2022)} && ! {_LISTENS.format(port=22)}", moved):
        yield


@contextmanager
def host_key_swapped(lan: Lan, node: str) -> Iterator[None]:
    swapped = written(lan, node, "/etc/ssh/ssh_host_ed25519_key", new_key_pair("swapped").private, mode="600")
    with _sshd_reads(lan, node, _LISTENS.format(port=22), swapped):
        yield


@contextmanager
def _sshd_reads(lan: Lan, node: str, then: str, change: AbstractContextManager[None]) -> Iterator[None]:
    """sshd with this change, and without it again."""
    try:
        with change:
            lan.root(node, _SSHD)
            lan.until(node, then)
            yield
    finally:
        lan.root(node, _SSHD)
        lan.until(node, _LISTENS.format(port=22))


@contextmanager
def second_address(lan: Lan, node: str, name: str, last: int) -> Iterator[None]:
    """A further address of this machine, under another name in the inventory: its key is unknown there."""
    address = lan.free_address(last)
    with (
        broken(lan, node, f"ip address add {address}/24 dev eth0", f"ip address delete {address}/24 dev eth0"),
        inventory(lan, name, address=address),
    ):
        yield


@contextmanager
def second_name(lan: Lan, node: str, name: str) -> Iterator[None]:
    """The same machine written down twice, by an address and its key that was accepted."""
    with second_address(lan, node, name, 91):
        path = lan.orch.folder / "two-names.yaml"
        path.write_text(f"nodes: {{{name}: {{address: {lan.free_address(91)}, user: orch}}}}\n")
        assert lan.orch("trust", "-n", name, "--yes", "-i", str(path)).code == 0
        yield


@contextmanager
def wrong_key(lan: Lan, node: str, name: str) -> Iterator[None]:
    """A key that this machine does not know."""
    identity = lan.orch.folder / "another_key"
    identity.write_text(new_key_pair("another").private)
    identity.chmod(0o600)
    address = in_hexadecimal(lan.address(node), zeros=1)
    with inventory(lan, name, address=address, identity=str(identity)):
        yield


def in_hexadecimal(address: str, *, zeros: int = 0) -> str:
    """The same address in another spelling, which the inventory does not know for the same."""
    return f"0x{'0' * zeros}" + "".join(f"{int(part):02x}" for part in address.split("."))


@contextmanager
def same_machine_id(lan: Lan, node: str, other: str) -> Iterator[None]:
    """Give a machine the id of another, as on machines that were cloned."""
    with written(lan, node, "/etc/machine-id", lan.root(other, "cat /etc/machine-id"), mode="444"):
        yield


@contextmanager
def very_slow_link(lan: Lan, node: str) -> Iterator[None]:
    """16 kbit/s: what a bad Wi-Fi at the end of the house, or a way around the world, comes to."""
    shape = "tc qdisc replace dev eth0 root tbf rate 16kbit burst 1600 latency 5s"
    with broken(lan, node, shape, "tc qdisc delete dev eth0 root"):
        yield
