"""The pure parts of the lab: names, ranges, links, sizes, keys, and the inventory that it writes."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from docker.errors import DockerException
from requests import ReadTimeout

from orchestrator.lab.host import engine_error, remove_all
from orchestrator.lab.inventory import MachineSize, inventory_text, suited_limits
from orchestrator.lab.network import free_subnets, node_address, parse_rate, parse_routes, shape_command
from orchestrator.lab.node import call_with_deadline, known_hosts_line, new_key_pair
from orchestrator.lab.state import Lab, LabNode, find_node, node_names
from orchestrator.specs.errors import DeadlineError, EngineError, UsageError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wlan0\t0000570A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def test_names_are_greek_then_numbered() -> None:
    assert node_names(2) == ("alpha", "beta")
    assert node_names(7)[4:] == ("epsilon", "node06", "node07")
    assert len(set(node_names(64))) == 64


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_lab_has_a_sensible_size(count: int) -> None:
    with pytest.raises(UsageError, match="1 to 64"):
        node_names(count)


def test_a_node_is_found_by_name_and_by_number_from_one() -> None:
    names = node_names(3)
    assert find_node("gamma", names) == find_node("3", names) == "gamma"
    for wrong in ("0", "4", "-1", "delta", "", "²"):
        with pytest.raises(UsageError) as caught:
            find_node(wrong, names)
        assert "alpha, beta, gamma" in caught.value.hint


def test_routes_are_read_and_avoided() -> None:
    routes = parse_routes(ROUTES)
    assert [str(route) for route in routes] == ["0.0.0.0/0", "172.17.0.0/16", "10.87.0.0/24"]
    free = list(islice(free_subnets([*routes, IPv4Network("10.87.2.0/23")]), 2))
    assert [str(subnet) for subnet in free] == ["10.87.1.0/24", "10.87.4.0/24"]
    assert node_address(free[0], 0) == "10.87.1.11"


def test_no_range_is_left_where_a_network_has_them_all() -> None:
    assert list(free_subnets([IPv4Network("10.0.0.0/8")])) == []


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 10**9), ("2.5Gbit", 2_500_000_000), (" 100mbit ", 10**8), ("500kbit", 500_000)]
)
def test_link_speeds(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "1", "1g", "0mbit", "-1gbit", "1gbit; reboot", "1e9bit"])
def test_what_is_no_link_speed_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a link speed"):
        parse_rate(text)


def test_a_bucket_holds_what_passes_between_two_timer_ticks() -> None:
    assert shape_command("1gbit")[6:] == ("tbf", "rate", "1000000000bit", "burst", "500000", "latency", "50ms")
    assert shape_command("1mbit")[9:11] == ("burst", "16384")
    assert shape_command("off") == ("tc", "qdisc", "delete", "dev", "eth0", "root")


def test_limits_share_cores_and_split_memory() -> None:
    limits = suited_limits(5, cpus=16, memory_mib=24_000)
    assert (limits.cpus, limits.memory_mib, limits.memory_reservation_mib, limits.shm_mib) == (2.0, 3584, 1024, 1024)


def test_limits_of_a_small_computer_stay_workable() -> None:
    limits = suited_limits(5, cpus=1, memory_mib=4096)
    assert (limits.cpus, limits.memory_mib, limits.shm_mib) == (1.0, 2048, 1024)


def test_limits_fit_into_a_machine_of_given_size() -> None:
    limits = suited_limits(2, cpus=8, memory_mib=64_000, own=MachineSize(cpus=0.5, memory_mib=1024))
    assert (limits.cpus, limits.memory_mib, limits.memory_reservation_mib, limits.shm_mib) == (0.5, 768, 384, 384)


def test_keys_are_what_openssh_and_paramiko_read(tmp_path: Path) -> None:
    key = new_key_pair("orch lab")
    file = tmp_path / "id_ed25519"
    file.write_text(key.private)
    read = paramiko.Ed25519Key.from_private_key_file(str(file))
    assert key.public == f"ssh-ed25519 {read.get_base64()} orch lab"
    hosts = tmp_path / "known_hosts"
    hosts.write_text(known_hosts_line("10.87.0.11", key))
    assert paramiko.HostKeys(str(hosts)).check("10.87.0.11", read)
    assert not paramiko.HostKeys(str(hosts)).check("10.87.0.12", read)


def test_the_inventory_of_machines_is_valid() -> None:
    nodes = (LabNode(name="alpha", address="10.87.0.11"), LabNode(name="beta", address="10.87.0.12"))
    lab = Lab(name="lab", engine="docker", nodes=nodes)
    text = inventory_text(lab, suited_limits(2, cpus=1, memory_mib=1000), Path("/home/ada/.local/state/orch/lab"))
    inventory = parse_inventory(text, filename="inventory.yaml")
    assert inventory.project == "lab"
    assert [node.name for node in inventory.nodes] == ["alpha", "beta"]
    beta = inventory.node("beta")
    assert (beta.address, beta.user, beta.connection) == ("10.87.0.12", "orch", "ssh")
    assert beta.identity == "/home/ada/.local/state/orch/lab/id_ed25519"
    assert (beta.limits.cpus, beta.limits.memory_mib) == (1.0, 2048)


def test_the_inventory_of_processes_gives_each_a_workspace_of_its_own() -> None:
    nodes = (LabNode(name="alpha", address="127.0.0.11"), LabNode(name="beta", address="127.0.0.12"))
    lab = Lab(name="lab", engine="process", nodes=nodes)
    text = inventory_text(lab, suited_limits(2, cpus=1, memory_mib=1000), Path("/state/lab"))
    inventory = parse_inventory(text, filename="inventory.yaml")
    assert {(node.connection, node.engine) for node in inventory.nodes} == {("local", "process")}
    assert [node.workspace for node in inventory.nodes] == ["/state/lab/nodes/alpha", "/state/lab/nodes/beta"]


def test_a_bounded_call_gives_its_result_its_error_or_a_deadline() -> None:
    assert call_with_deadline(lambda: 7, timeout_s=5, what="counting", node="alpha") == 7
    with pytest.raises(ZeroDivisionError):
        call_with_deadline(lambda: 1 // 0, timeout_s=5, what="dividing", node="alpha")
    reader, writer = os.pipe()
    with pytest.raises(DeadlineError, match=r"alpha: reading did not end within 0\.05 s"):
        call_with_deadline(lambda: os.read(reader, 1), timeout_s=0.05, what="reading", node="alpha")
    os.write(writer, b"x")  # lets the thread go
    os.close(writer)


class Thing:
    """A container, volume or network of an engine that fails to remove it a few times."""

    def __init__(self, shelf: list[Thing], name: str, failures: int = 0) -> None:
        self.name, self._shelf, self._failures = name, shelf, failures
        shelf.append(self)

    def remove(self, **_how: bool) -> None:
        if self._failures:
            self._failures -= 1
            raise ReadTimeout("Read timed out.")
        self._shelf.remove(self)


def an_engine(failures: int) -> Any:
    shelves: dict[str, list[Thing]] = {"containers": [], "volumes": [], "networks": []}
    Thing(shelves["containers"], "orch-lab-alpha", failures)
    Thing(shelves["containers"], "orch-lab-beta")
    Thing(shelves["volumes"], "orch-lab-beta")
    Thing(shelves["networks"], "orch-lab")
    return SimpleNamespace(
        **{name: SimpleNamespace(list=lambda shelf=shelf, **_: list(shelf)) for name, shelf in shelves.items()}
    )


def test_what_a_busy_engine_fails_to_remove_is_tried_again_and_the_rest_removed() -> None:
    client = an_engine(failures=1)
    assert remove_all(client, []) == [
        "container orch-lab-alpha", "container orch-lab-beta", "volume orch-lab-beta", "network orch-lab",
    ]  # fmt: skip
    assert client.containers.list() == client.networks.list() == []


def test_what_is_left_of_a_lab_is_named() -> None:
    client = an_engine(failures=2)
    with pytest.raises(EngineError, match="did not remove container orch-lab-alpha: Read timed out") as caught:
        remove_all(client, [])
    assert "orch lab down" in str(caught.value.hint)
    assert client.networks.list() == []


def test_an_engine_that_takes_too_long_has_refused_nothing() -> None:
    slow = engine_error(ReadTimeout("Read timed out. (read timeout=120)"))
    assert (slow.message, "the same command again" in slow.hint) == (
        "the Docker Engine of this computer gave no answer in 120 s", True,
    )  # fmt: skip
    assert engine_error(DockerException("no space")).message == "the Docker Engine of this computer refused: no space"
