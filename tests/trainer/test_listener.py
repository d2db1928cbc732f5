"""The coordinator's port, by real sockets: strangers cost it nothing, a node of the run only its own connection."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract import environment
from contract.run_folder import AGENTS_TOKEN
from tests.trainer.test_agent import free_port
from trainer.agent.coordinator import EndRun, Order, StartRanks
from trainer.agent.coordinator_link import CoordinatorClient, CoordinatorServer
from trainer.agent.handshake import SHORTEST, Greeting, draw, read_asked, read_token
from trainer.agent.listener import (
    AgentListener,
    ListenerEvent,
    NodeConnected,
    NodeDisconnected,
    NodeReported,
)
from trainer.agent.messages import Ping, Ready
from trainer.agent.options import AgentOptions, read
from trainer.agent.wire import MOST_LINES

SECRET = b"7" * SHORTEST
NAMES = ("alpha", "beta", "gamma")
MANY = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
print("there", flush=True)
sys.stdin.read()
"""


@dataclass
class Listened:
    """A coordinator's port, what came in, and what was noted."""

    port: int = field(default_factory=free_port)
    notes: list[str] = field(default_factory=list)
    news: list[ListenerEvent] = field(default_factory=list)
    greeting_s: float = 5.0
    live_s: float = 5.0

    def __post_init__(self) -> None:
        argv = ["--nodes", ",".join(NAMES), "--node-rank", "0", "--address", "127.0.0.1", "--port", str(self.port)]
        self.listener = AgentListener(
            read([*argv, "--", "torchrun"], {"ORCH_RUN_ID": "r"}), SECRET, lambda _, text: self.notes.append(text),
            greeting_s=self.greeting_s, live_s=self.live_s,
        )  # fmt: skip

    def until(self, true: Callable[[], object], timeout_s: float = 10) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, (self.news, self.notes[-5:])
            self.news += self.listener.hear(0.02)

    def call(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def greet(self, rank: int, *, token: bytes = SECRET, run: str = "r.0", purpose: str = "messages") -> socket.socket:
        """Greet as a node does; the coordinator's answer is left to be read."""
        node, came = self.call(), b""
        node.setblocking(False)

        def asked() -> bool:
            nonlocal came
            try:
                came += node.recv(1000)
            except BlockingIOError:
                return False
            return came.endswith(b"\n")

        self.until(asked)
        greeting = Greeting(run=run, node_rank=rank, asked=read_asked(came.strip()), drawn=draw(), purpose=purpose)
        node.sendall(json.dumps(greeting.as_message(token)).encode() + b"\n")
        return node

    def is_shut(self, one: socket.socket) -> bool:
        """Return whether the coordinator has ended this connection; what it sent is taken on the way."""
        one.setblocking(False)
        try:
            while one.recv(10_000):
                continue
            return True
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


@pytest.fixture
def listened() -> Iterator[Callable[..., Listened]]:
    made: list[Listened] = []

    def listen(**how: float) -> Listened:
        made.append(Listened(**how))  # type: ignore[arg-type]  # seconds alone are said
        return made[-1]

    yield listen
    for one in made:
        one.listener.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\r\n", b'{"run": "r.0", "node_rank": 1}\n', b"[1]\n", b"{" * 70_000, b"\xff" * 2000 + b"\n",
        b'{"run": "r.0", "node_rank": Infinity}\n', b"\n" * 5000,
    ],
)  # fmt: skip
def test_strangers_are_not_listened_to(listened: Callable[..., Listened], junk: bytes) -> None:
    here = listened()
    node = here.greet(1)
    here.until(lambda: here.news == [NodeConnected(node_rank=1)])
    with here.call() as stranger:
        stranger.sendall(junk)
        here.until(lambda: here.is_shut(stranger))
    assert here.news == [NodeConnected(node_rank=1)]
    assert not here.is_shut(node)
    assert here.notes[-1].startswith("127.0.0.1 is not a node of this run, its connection was closed: ")
    node.close()


def test_who_does_not_have_the_token_is_no_node(listened: Callable[..., Listened]) -> None:
    here = listened()
    with here.greet(1, token=b"8" * SHORTEST) as stranger:
        here.until(lambda: here.is_shut(stranger))
    assert here.news == []
    with here.greet(1, run="r.1") as other_attempt:
        here.until(lambda: here.is_shut(other_attempt))
    assert here.news == []
    assert here.notes[-1].endswith("this is run r.0")


def test_one_deadline_for_all_of_a_greeting(listened: Callable[..., Listened]) -> None:
    """A letter now and then buys no time; nor does silence."""
    here = listened(greeting_s=0.5)
    letters = 0
    with here.call() as slow, here.call() as silent:

        def slowly() -> bool:
            nonlocal letters
            try:
                slow.sendall(b"{")
                letters += 1
            except ConnectionError:
                return True
            return here.is_shut(slow)

        here.until(slowly)
        here.until(lambda: here.is_shut(silent))
    assert letters > 3


def test_however_many_are_silent_a_node_comes_in_and_no_thread_is_begun(listened: Callable[..., Listened]) -> None:
    here, threads = listened(), set(threading.enumerate())
    strangers = [here.call() for _ in range(100)]
    node = here.greet(2)
    here.until(lambda: NodeConnected(node_rank=2) in here.news)
    assert set(threading.enumerate()) <= threads
    shut = sum(here.is_shut(one) for one in strangers)
    assert shut >= len(strangers) - 2 * len(NAMES) - 16
    for one in (node, *strangers):
        one.close()


def test_without_a_descriptor_left_it_waits_and_continues_listening(listened: Callable[..., Listened]) -> None:
    here = listened()
    node = here.greet(1)
    here.until(lambda: NodeConnected(node_rank=1) in here.news)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = subprocess.Popen(
        (sys.executable, "-c", MANY, str(here.port), "40"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert many.stdin
    assert many.stdout
    try:
        with here.call() as probe:
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + 4, hard))
            here.until(lambda: any(note.startswith("no room for another connection: ") for note in here.notes))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        many.stdin.close()
        many.wait(10)
        many.stdout.close()
    other = here.greet(2)
    here.until(lambda: NodeConnected(node_rank=2) in here.news)
    assert not here.is_shut(node)
    node.close()
    other.close()


def test_a_second_connection_of_a_node_waits_for_the_first_ones_silence(listened: Callable[..., Listened]) -> None:
    """A connection of which no end is heard, as after a pulled cable, gives way once its heartbeats are missing."""
    here = listened(live_s=0.6)
    first = here.greet(1)
    here.until(lambda: here.news == [NodeConnected(node_rank=1)])
    second = here.greet(1)
    here.until(lambda: b"beta is connected already" in received(second))
    assert not here.is_shut(first)
    first.sendall(b'{"ping": {}}\n')
    here.until(lambda: here.news[-1] == NodeReported(node_rank=1, report=Ping()))
    time_of_silence = time.monotonic()
    here.until(lambda: time.monotonic() - time_of_silence > 0.7)
    third = here.greet(1)
    here.until(lambda: here.news[-2:] == [NodeDisconnected(node_rank=1), NodeConnected(node_rank=1)])
    here.until(lambda: here.is_shut(first))
    for one in (first, second, third):
        one.close()


def received(one: socket.socket) -> bytes:
    one.setblocking(False)
    try:
        return one.recv(1000)
    except (BlockingIOError, ConnectionError):
        return b""


def test_what_a_node_says_that_is_not_understood_is_dropped_with_a_line(listened: Callable[..., Listened]) -> None:
    here = listened()
    node = here.greet(1)
    here.until(lambda: here.news)
    rubbish = (
        b'{"ready": Infinity}', b'{"ready": {"generation": 1e300}}', b"[]", b'{"ended": {"rank_exit": {"kind": []}}}',
        b'{"ended": {"rank_exit": {"kind": "user", "node": "gamma"}}}',  # in the name of another
    )  # fmt: skip
    node.sendall(b"\n".join((*rubbish, b'{"ready": {"generation": 4}}', b"")))
    here.until(lambda: here.news == [NodeConnected(node_rank=1), NodeReported(node_rank=1, report=Ready(generation=4))])
    assert [note.startswith("beta sent an invalid message: ") for note in here.notes] == [True] * len(rubbish)
    node.close()


@pytest.mark.parametrize("flood", [b'{"ping": {}}\n' * (MOST_LINES + 1), b"x" * 70_000])
def test_too_much_costs_a_node_its_own_connection(listened: Callable[..., Listened], flood: bytes) -> None:
    here = listened()
    hostile, other = here.greet(1), here.greet(2)
    here.until(lambda: len(here.news) == 2)
    hostile.setblocking(True)
    hostile.sendall(flood)
    here.until(lambda: here.is_shut(hostile))
    assert here.news[-1] == NodeDisconnected(node_rank=1)
    assert sum(isinstance(news, NodeReported) for news in here.news) <= MOST_LINES
    assert not here.is_shut(other)
    hostile.close()
    other.close()


# ── Both ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def options(folder: Path, rank: int, port: int, absence_s: float = 60.0) -> AgentOptions:
    (folder / AGENTS_TOKEN).write_bytes(SECRET)
    return AgentOptions(
        run="r.0", names=NAMES[:2], node_rank=rank, first_rank=rank, address="127.0.0.1", port=port, restarts=3,
        silence_s=60, absence_s=absence_s, frozen_s=60, stuck_s=30, folder=folder, command=("torchrun",),
    )  # fmt: skip


def test_the_token_may_lie_elsewhere(tmp_path: Path) -> None:
    """The token of a pod is a file of a Secret."""
    argv = ["--nodes", "alpha,beta", "--node-rank", "0", "--address", "127.0.0.1", "--port", "1", "--", "torchrun"]
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / AGENTS_TOKEN).write_bytes(b"z" * 32)
    run_folder = {environment.RUN_DIR: str(tmp_path)}
    elsewhere = {**run_folder, environment.TOKEN_FILE: str(tmp_path / "secret")}
    assert read_token(read(argv, run_folder).token_file) == b"z" * 32
    assert read_token(read(argv, elsewhere).token_file) == SECRET


def test_a_node_and_its_coordinator_know_each_other(tmp_path: Path) -> None:
    port = free_port()
    server, client = CoordinatorServer(options(tmp_path, 0, port)), CoordinatorClient(options(tmp_path, 1, port))
    stop, reports = threading.Event(), list[Order]()

    def listen() -> None:
        while not stop.is_set():
            reports.extend(server.orders(0.05))

    server.ready(0)
    listener = threading.Thread(target=listen)
    listener.start()
    try:
        client.ready(3)
        orders: list[Order] = []
        deadline = time.monotonic() + 10
        while not orders:
            assert time.monotonic() < deadline
            orders += client.orders(0.05)
        assert orders == [StartRanks(generation=4)]
    finally:
        stop.set()
        listener.join()
        client.close()
        server.close()
    assert StartRanks(generation=4) in reports


def test_who_answers_in_the_coordinators_place_is_not_obeyed(tmp_path: Path) -> None:
    """Such a program gets no token either, with which it could speak to the others."""
    port = free_port()
    client = CoordinatorClient(options(tmp_path, 1, port, absence_s=0.5))
    listened: list[bytes] = []

    server = socket.create_server(("127.0.0.1", port))

    def answer() -> None:
        with server, server.accept()[0] as called:
            called.sendall(b'{"asked": "' + b"0" * 32 + b'"}\n')
            listened.append(called.recv(5000))
            called.sendall(b'{"proof": "' + b"0" * 64 + b'"}\n{"end": {}}\n')

    impostor = threading.Thread(target=answer)
    impostor.start()
    orders: list[Order] = []
    deadline = time.monotonic() + 10
    while not orders:
        assert time.monotonic() < deadline
        orders += client.orders(0.05)
    impostor.join()
    client.close()
    assert SECRET not in listened[0]
    (over,) = orders
    assert isinstance(over, EndRun)
    assert over.rank_exit.reason.startswith("it could not be reached for ")


def test_a_connection_for_files_is_of_a_node_that_is_connected() -> None:
    taken: list[int] = []

    def take(rank: int, connected: socket.socket) -> None:
        taken.append(rank)
        connected.close()

    here = Listened()
    here.listener.close()
    argv = ["--nodes", ",".join(NAMES), "--node-rank", "0", "--address", "127.0.0.1", "--port", str(here.port)]
    options = read([*argv, "--", "torchrun"], {"ORCH_RUN_ID": "r"})
    here.listener = AgentListener(options, SECRET, lambda _, text: here.notes.append(text), take={"files": take})
    with here.greet(1, purpose="files") as early:
        here.until(lambda: here.notes)
        early.settimeout(5)
        assert b"beta is not connected" in early.recv(4096)
    with here.greet(1), here.greet(1, purpose="files", token=b"8" * SHORTEST):
        here.until(lambda: len(here.news) == 1 and len(here.notes) == 2)
        with here.greet(1, purpose="files"):
            here.until(lambda: taken)
    here.listener.close()
    assert (taken, here.news[0]) == ([1], NodeConnected(node_rank=1))
