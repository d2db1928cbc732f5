"""The port of torch's store: ranks of the run get through, and no other process of the machine or the network."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.trainer.test_agent import free_port
from trainer.agent import processes
from trainer.agent.connection_owner import ConnectionOwner
from trainer.agent.messages import MisfitError
from trainer.agent.processes import children_of, listed_below, proc_text
from trainer.agent.rendezvous_port import RendezvousPort
from trainer.agent.store_messages import MOST_ASKED, StoreConnection, question, read_answer, read_question
from trainer.agent.store_proxy import STORE_ADDRESS, StoreProxy, shared_socket
from trainer.agent.wire import AgentConnection

RANK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as store:
    store.sendall(b"x" * int(sys.argv[2]))
    store.shutdown(socket.SHUT_WR)
    print(sum(len(piece) for piece in iter(lambda: store.recv(65536), b"")), flush=True)
"""
"""A rank of this machine: a process below this one, as ranks are below their agent."""


@dataclass
class Store:
    """A store behind its proxy that returns all that it receives."""

    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reserved = RendezvousPort(free_port(), self.note, listens=True)
        self.port = self.reserved.reserve()
        self.proxy = StoreProxy()
        assert self.reserved.held
        self.listening = self.proxy.open(self.reserved.held, self.note)
        threading.Thread(target=self._serve, args=(self.listening,), daemon=True).start()

    @property
    def process(self) -> int:
        """The proxy's."""
        (pid,) = (child.pid for child in children_of(os.getpid()) if "store_server" in proc_text(child.pid, "cmdline"))
        return pid

    def note(self, _kind: str, text: str) -> None:
        self.notes.append(text)

    def _serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._return, args=(listening.accept()[0],), daemon=True).start()

    def _return(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            whole = b"".join(iter(lambda: client.recv(65536), b""))
            client.sendall(whole)

    def of_rank(self, size: int = 3) -> int:
        """Number of bytes that a rank of this machine gets back."""
        words = (sys.executable, "-c", RANK, str(self.port), str(size))
        return int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)

    def is_let_in(self, client: socket.socket) -> bool:
        client.settimeout(20)
        try:
            client.sendall(b"abc")
            client.shutdown(socket.SHUT_WR)
            return client.recv(3) == b"abc"
        except ConnectionError:
            return False

    def call(self, address: str = "") -> socket.socket:
        """Connect as this process, which is not below itself: as another program of the machine."""
        return socket.create_connection(("127.0.0.1", self.port), 20, (address, 0) if address else None)

    def close(self) -> None:
        self.proxy.close()
        self.reserved.close()
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store()) as store:
        yield store


def until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_rank_reaches_the_store_and_another_program_of_the_machine_does_not(store: Store) -> None:
    with store.call() as stranger:
        assert not store.is_let_in(stranger)
    assert store.of_rank(5_000_000) == 5_000_000, "with more than the buffers hold"


def test_the_store_cannot_be_called_beside_its_proxy(store: Store) -> None:
    with pytest.raises(TimeoutError):
        socket.create_connection((STORE_ADDRESS, store.port), timeout=0.5)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("option", ["SO_REUSEADDR", "SO_REUSEPORT"])
def test_another_user_cannot_bind_the_port_from_which_the_store_is_called(option: str) -> None:
    with shared_socket("", 0) as source:
        port = source.getsockname()[1]
        program = f"""
import os, socket
os.setuid(65534)
for address in ("", "127.200.0.1"):
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.{option}, 1)
    try:
        stranger.bind((address, {port}))
    except OSError as error:
        print(error.strerror)
"""
        ended = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)
        assert ended.stdout.splitlines() == ["Address already in use"] * 2
        with shared_socket("127.200.0.1", port):
            pass


def test_idle_strangers_keep_no_rank_out_and_hold_no_descriptors(store: Store) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        strangers = [store.call() for _ in range(2000)]
        assert store.of_rank() == 3
        files = Path(f"/proc/{store.process}/fd")
        until(lambda: len(list(files.iterdir())) < 30)
        for one in strangers:
            one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Node:
    """Another node of the run, at an address of its own, which answers as `owns` says."""

    def __init__(self, store: Store, address: str, owns: Callable[[list[StoreConnection]], object]) -> None:
        self.asked: list[StoreConnection] = []
        self._owns, self.has_left = owns, threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            here = socket.create_connection(listening.getsockname(), 10, (address, 0))
            store.proxy.take(1, listening.accept()[0])
        self.line = AgentConnection(here)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                for text in self.line.receive(20):
                    asked = read_question(text)
                    self.asked += asked
                    self.line.send({"own": self._owns(asked)})
        self.has_left.set()


def test_a_node_is_asked_about_connections_from_its_own_address(store: Store) -> None:
    node = Node(store, "127.0.0.2", lambda asked: [*range(len(asked))])
    with closing(node.line):
        with store.call("127.0.0.2") as rank:
            assert store.is_let_in(rank)
            assert node.asked == [StoreConnection(*rank.getsockname(), "127.0.0.1", store.port)]
        with store.call("127.0.0.3") as stranger:
            assert not store.is_let_in(stranger)
        assert len(node.asked) == 1


@pytest.mark.parametrize("answer", [[7], [-1], "all", [True], None], ids=str)
def test_a_node_with_an_invalid_answer_is_asked_no_more(store: Store, answer: object) -> None:
    node = Node(store, "127.0.0.2", lambda asked: answer)
    with closing(node.line), store.call("127.0.0.2") as rank:
        assert not store.is_let_in(rank)
        assert node.has_left.wait(20), "its connection was closed"
    assert store.of_rank() == 3


def test_connections_end_with_their_generation_and_the_next_has_its_own(store: Store) -> None:
    node = Node(store, "127.0.0.2", lambda asked: [*range(len(asked))])
    with closing(node.line), store.call("127.0.0.2") as rank:
        rank.sendall(b"abc")
        until(lambda: node.asked)
        first, old = store.port, store.listening
        store.port = store.reserved.reserve()
        assert store.reserved.held
        store.listening = store.proxy.open(store.reserved.held, store.note)
        old.close()
        threading.Thread(target=store._serve, args=(store.listening,), daemon=True).start()
        rank.settimeout(20)
        with suppress(ConnectionError):
            assert rank.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first), timeout=5)
        assert store.of_rank() == 3


@pytest.mark.parametrize("missed", [0, 1], ids=["listed", "missed at first"])
def test_an_agent_answers_for_the_processes_below_it_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    """The answer includes one that the kernel leaves out of its list while others end."""
    lists = iter([iter(())] * missed)
    monkeypatch.setattr(processes, "listed_below", lambda pid, listed=listed_below: next(lists, None) or listed(pid))
    here, there = socket.socketpair()
    owner = ConnectionOwner(lambda: AgentConnection(there), once=True)
    line = AgentConnection(here)
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"import socket, sys; s = socket.create_connection({server.getsockname()!r}); sys.stdin.read()"
        with (
            subprocess.Popen((sys.executable, "-c", call), stdin=subprocess.PIPE) as rank,
            socket.create_connection(server.getsockname()),
        ):
            seen = [server.accept() for _ in range(2)]
            asked = [StoreConnection(*peer, *server.getsockname()) for _, peer in seen]
            line.send(question([*asked, StoreConnection("10.0.0.9", 1, "10.0.0.1", 2)]))
            (text,) = line.receive(20)
            own = read_answer(text, 3)
            mine = [place for place, one in enumerate(asked) if one.port in _ports_of(rank.pid)]
            assert own == frozenset(mine)
            assert len(mine) == 1
            for connected, _ in seen:
                connected.close()
            assert rank.stdin
            rank.stdin.close()
    owner.close()
    line.close()


def test_what_comes_with_the_next_line_is_not_lost() -> None:
    """A question, or the end of a run, may be sent right after the welcome."""
    here, there = socket.socketpair()
    line = AgentConnection(here)
    there.sendall(b"welcome\nquestion\nhal")
    assert line.next(time.monotonic() + 5) == b"welcome"
    assert line.receive(5) == [b"question"]
    there.sendall(b"f\n")
    assert line.receive(5) == [b"half"]
    line.close()
    there.close()


def _ports_of(pid: int) -> set[int]:
    """Local ports of a process's connections."""
    from trainer.agent.connections import connections, inodes

    known = connections() or {}
    return {known[inode].ports[0] for inode in inodes(pid) if inode in known}


@pytest.mark.parametrize(
    "text",
    [
        b"{}", b"[]", b'{"whose":{}}', b'{"whose":[1]}', b'{"whose":[{"address":"127.0.0.1"}]}',
        b'{"whose":[{"address":"::1","port":1,"to_address":"127.0.0.1","to_port":1}]}',
        b'{"whose":[{"address":"127.0.0.1","port":70000,"to_address":"127.0.0.1","to_port":1}]}',
        b'{"whose":[' + b",".join([b"{}"] * (MOST_ASKED + 1)) + b"]}",
    ],
    ids=range(8),
)  # fmt: skip
def test_a_question_that_does_not_fit_is_refused(text: bytes) -> None:
    with pytest.raises(MisfitError):
        read_question(text)
