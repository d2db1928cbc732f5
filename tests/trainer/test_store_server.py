"""The port of torch's store: ranks of the run get through, and nobody else on the same machine or in the network."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.trainer.test_agent import PACKAGES, free_port
from trainer.agent.connection_owner import ConnectionOwner
from trainer.agent.connections import connections, inodes
from trainer.agent.messages import MisfitError
from trainer.agent.rank_exit import read_rank_exit
from trainer.agent.rendezvous_port import RendezvousPort
from trainer.agent.shared_socket import shared_socket
from trainer.agent.store_links import StoreLinks
from trainer.agent.store_messages import MOST_ASKED, StoreConnection, question, read_answer, read_question
from trainer.agent.store_socket import SPARE, STORE_ADDRESS
from trainer.agent.wire import AgentConnection

RANK = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as store:
    store.sendall(b"x" * int(sys.argv[2]))
    store.shutdown(socket.SHUT_WR)
    print(sum(len(piece) for piece in iter(lambda: store.recv(65536), b"")), flush=True)
"""
"""A rank of this machine: a process below the one that holds the store, as ranks are below torchrun."""

HOLDER = """
import contextlib, os, selectors, socket, subprocess, sys, threading
from trainer.agent.log_pipes import LogWriter
from trainer.agent.store_server import StoreServer
listener, control = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
port = listener.getsockname()[1]
server = StoreServer(listener, control, LogWriter(sys.stderr.buffer).note, os.getpid())

def serve(listening):  # return all that a client has sent
    loop = selectors.EpollSelector()
    listening.setblocking(False)
    loop.register(listening, selectors.EVENT_READ, None)
    while True:
        for key, _ in loop.select():
            if key.data is None:
                client = listening.accept()[0]
                client.setblocking(False)
                loop.register(client, selectors.EVENT_READ, bytearray())
            else:
                try:
                    key.data.extend(piece := key.fileobj.recv(65536))
                except ConnectionError:
                    piece = b""
                if not piece:
                    loop.unregister(key.fileobj)
                    with contextlib.suppress(OSError), key.fileobj as client:
                        client.setblocking(True)
                        client.sendall(key.data)

threading.Thread(target=serve, args=(server.store.listening,), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    subprocess.run((sys.executable, "-c", sys.argv[3], str(port), line.strip()))
"""


class Store:
    """A process with a store that returns all that it receives, as torchrun's has torch's."""

    def __init__(self) -> None:
        self.reserved = RendezvousPort(free_port(), lambda _kind, _text: None, listens=True)
        self.port = self.reserved.reserve()
        self.links = StoreLinks()
        assert self.reserved.held
        passed = self.links.open(self.reserved.held)
        descriptors = [one.fileno() for one in passed]
        self.process = subprocess.Popen(
            (sys.executable, "-c", HOLDER, *map(str, descriptors), RANK),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=descriptors,
            env={**os.environ, "PYTHONPATH": PACKAGES},
        )  # fmt: skip
        for one in passed:
            one.close()
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def of_rank(self, size: int = 3) -> int:
        """Number of bytes that a rank of this machine gets back."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def is_let_in(self, client: socket.socket) -> bool:
        client.settimeout(20)
        try:
            client.sendall(b"abc")
            client.shutdown(socket.SHUT_WR)
            return client.recv(3) == b"abc"
        except ConnectionError:
            return False

    def call(self, address: str = "") -> socket.socket:
        """Connect as this process, which is not below the one with the store: as another program of the machine."""
        return socket.create_connection(("127.0.0.1", self.port), 20, (address, 0) if address else None)

    def close(self) -> None:
        self.links.close()
        self.reserved.close()
        self.process.kill()
        self.process.communicate()  # closes the pipes, too


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


def test_the_store_cannot_be_called_but_by_its_own_process(store: Store) -> None:
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
        files = Path(f"/proc/{store.process.pid}/fd")
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
            store.links.take(1, listening.accept()[0])
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


def test_nothing_is_between_a_rank_and_the_store(store: Store) -> None:
    node = Node(store, "127.0.0.2", lambda asked: [*range(len(asked))])
    ranks = [store.call("127.0.0.2") for _ in range(2 * SPARE)]
    with closing(node.line):
        assert all(store.is_let_in(rank) for rank in ranks[1:])
        ranks[0].sendall(b"a")
        until(lambda: _calls(store.port) == SPARE)
        ranks[0].settimeout(20)
        ranks[0].shutdown(socket.SHUT_WR)
        assert ranks[0].recv(3) == b"a"
    for rank in ranks:
        rank.close()


def _calls(port: int) -> int:
    """Number of connections with the store's own address: of calls in advance, and none for each rank."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = f"{int.from_bytes(socket.inet_aton(STORE_ADDRESS), 'little'):08X}:{port:04X}"
    return sum(row[1] == local and row[3] == "01" for row in rows)


def test_an_error_of_the_thread_ends_the_process_by_name(store: Store) -> None:
    assert store.links._control
    store.links._control.send(b"no rank")
    assert store.process.wait(20) == -signal.SIGTERM
    assert store.process.stderr
    ended = read_rank_exit("alpha", 1, store.process.stderr.read().splitlines(), first_rank=0)
    assert ended.reason.startswith("the port of torch's store has failed: ValueError: invalid literal")


def test_the_end_of_the_agent_ends_the_process(store: Store) -> None:
    store.links.close()
    assert store.process.wait(20) == -signal.SIGTERM


def test_an_agent_answers_for_the_processes_below_it_alone() -> None:
    here, there = socket.socketpair()
    owner = ConnectionOwner(lambda: AgentConnection(there))
    line = AgentConnection(here)
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"import socket, sys; s = socket.create_connection({server.getsockname()!r}); s.recv(1)"
        words = (sys.executable, "-c", call)
        with subprocess.Popen(words) as rank, socket.create_connection(server.getsockname()):
            subprocess.run(("sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", *words), check=True)  # its parent has ended
            seen = [server.accept() for _ in range(3)]
            asked = [StoreConnection(*peer, *server.getsockname()) for _, peer in seen]
            line.send(question([*asked, StoreConnection("10.0.0.9", 1, "10.0.0.1", 2)]))
            (text,) = line.receive(20)
            known = _ports_of(rank.pid)
            assert read_answer(text, 4) == frozenset(place for place, one in enumerate(asked) if one.port in known)
            assert len(known) == 1
            for connected, _ in seen:
                connected.close()
    owner.close()
    line.close()


def _ports_of(pid: int) -> set[int]:
    """Local ports of a process's connections."""
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
