"""The port on which ranks meet: reserved by rank 0's agent, so that two runs on a machine never have the same one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from contract.run_folder import AGENTS_TOKEN
from tests.trainer.test_agent import PACKAGES, free_port
from trainer.agent.rendezvous_port import RendezvousPort, planned_port, port_environment, with_port
from trainer.agent.store_proxy import StoreProxy

SCRIPT = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("met on", os.environ["MASTER_PORT"], "with", int(one), flush=True)
"""


def _ports(planned: int, notes: list[str] | None = None) -> RendezvousPort:
    return RendezvousPort(planned, lambda _, text: (notes if notes is not None else []).append(text))


def test_two_runs_with_the_same_plan_have_different_ports() -> None:
    planned, notes = free_port(), list[str]()
    first, second = _ports(planned), _ports(planned, notes)
    try:
        assert first.reserve() == planned
        other = second.reserve()
        assert other > planned
        assert notes == [f"port {planned} is not free: the ranks meet on port {other}"]
    finally:
        first.close()
        second.close()


def test_every_generation_has_a_port_of_its_own_and_releases_the_last_one() -> None:
    planned = free_port()
    ports, later = _ports(planned), _ports(planned)
    try:
        assert ports.reserve() < ports.reserve()
        assert later.reserve() == planned
    finally:
        ports.close()
        later.close()


def test_the_next_run_has_the_port_of_a_store_whose_connections_have_just_ended() -> None:
    """A firewall may let through this port alone. Linux remembers connections for a minute after their end."""
    port = free_port()
    _serve_and_end(port)
    _must_have(_ports(port), port)


def test_a_proxy_listens_on_the_port_of_a_store_whose_connections_have_just_ended() -> None:
    """An own script's torchrun had the store before."""
    port, proxy = free_port(), StoreProxy()
    _serve_and_end(port)
    ports = RendezvousPort(port, lambda *_: None, listens=True)
    assert ports.reserve() == port
    assert ports.held
    with proxy.open(ports.held, lambda *_: None), socket.create_connection(("127.0.0.1", port)) as stranger:
        assert stranger.recv(1) == b""
    proxy.close()
    ports.close()


def _serve_and_end(port: int) -> None:
    first = _ports(port)
    assert first.reserve() == port
    with socket.create_server(("", port)) as store, socket.create_connection(("127.0.0.1", port)) as rank:
        store.accept()[0].close()  # this end stays in TIME_WAIT
        assert rank.recv(1) == b""
    first.close()


def test_the_next_run_has_the_port_of_a_proxy_whose_connections_have_just_ended() -> None:
    first, proxy = RendezvousPort(free_port(), lambda *_: None, listens=True), StoreProxy()
    port = first.reserve()
    assert first.held
    with proxy.open(first.held, lambda *_: None), socket.create_connection(("127.0.0.1", port)) as stranger:
        assert stranger.recv(1) == b""
    proxy.close()
    first.close()
    _must_have(RendezvousPort(port, lambda *_: None, listens=True), port)


def _must_have(ports: RendezvousPort, port: int) -> None:
    try:
        assert ports.reserve() == port
    finally:
        ports.close()


def test_a_reserved_port_can_be_listened_on() -> None:
    """Torch's store listens in the same way; a program that does not share the port is refused."""
    ports = _ports(free_port())
    port = ports.reserve()
    try:
        with pytest.raises(OSError, match="in use"), socket.socket() as strange:
            strange.bind(("", port))
        with socket.create_server(("", port)), socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        ports.close()


def test_without_a_planned_port_the_command_stays_as_it_is() -> None:
    assert _ports(0).reserve() == 0
    assert planned_port({}) == planned_port({"MASTER_PORT": "auto"}) == 0
    words = ["torchrun", "--master-port", "12355", "train.py"]
    assert with_port(words, 0) == words
    assert with_port(["bash", *words[1:]], 12360) == ["bash", *words[1:]], "a program of the user has its own options"
    assert planned_port({"MASTER_PORT": "-1"}) == 0
    assert with_port(words, 12360) == ["torchrun", "--master-port", "12360", "train.py"]
    both = {"MASTER_PORT": "12355", "PET_MASTER_PORT": "12355"}
    assert port_environment(both, 12360) == dict.fromkeys(both, "12360")
    assert port_environment({"A": "1"}, 12360) == port_environment(both, 0) == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_whose_port_was_taken_after_its_plan_begins_at_once_on_another(tmp_path: Path) -> None:
    """No restart is needed: a rank would otherwise meet the other run's ranks, or end with EADDRINUSE."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / AGENTS_TOKEN).write_text("ab" * 32)
    agents = free_port()
    with socket.create_server(("", 0)) as other_run:
        master = str(other_run.getsockname()[1])
        environment = {
            **os.environ, "PYTHONPATH": PACKAGES, "ORCH_RUN_DIR": str(tmp_path), "OMP_NUM_THREADS": "1",
            "MASTER_PORT": master, "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        nodes = [
            subprocess.Popen(
                (
                    sys.executable, "-m", "trainer.agent", "--nodes", "alpha,beta", "--node-rank", str(rank),
                    "--first-rank", str(rank), "--address", "127.0.0.1", "--port", str(agents), "--restarts", "0", "--",
                    "torchrun", "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1",
                    "--master-addr", "127.0.0.1", "--master-port", master, "--max-restarts", "0", "script.py",
                ),
                env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            first, second = (node.communicate(timeout=200)[0] for node in nodes)
        finally:
            for node in nodes:
                node.kill()
    assert [node.returncode for node in nodes] == [0, 0], first + second
    assert f"port {master} is not free: the ranks meet on port " in first
    assert "with 2" in first
    assert "with 2" in second
    assert f"met on {master} " not in first + second
