"""An engine that takes its time, and one that says nothing: a real client, and an HTTP server of a few lines."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import docker
import paramiko
import pytest

from orchestrator.nodes.docker_engine import DockerEngine
from orchestrator.specs.errors import DeadlineError, EngineError

PATIENCE_S = 1
LOADED = b'{"stream": "Loaded"}'


@pytest.fixture
def unpacked() -> threading.Event:
    return threading.Event()


@pytest.fixture
def engine(unpacked: threading.Event) -> Iterator[DockerEngine]:
    class SlowEngine(BaseHTTPRequestHandler):
        """Unpacks for twice the client's patience, and never describes itself."""

        def do_POST(self) -> None:
            self.rfile.read1()
            time.sleep(2 * PATIENCE_S)
            unpacked.set()
            self.send_response(200)
            self.send_header("Content-Length", str(len(LOADED)))
            self.end_headers()
            self.wfile.write(LOADED)

        def do_GET(self) -> None:
            ended.wait()

        def log_message(self, *_: object) -> None: ...

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowEngine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    engine = DockerEngine(
        "beta", lambda: docker.APIClient(base_url=url, version="1.41", timeout=PATIENCE_S), explain=lambda: ""
    )
    yield engine
    engine.close()
    ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_image_may_take_longer_than_an_answer(engine: DockerEngine, unpacked: threading.Event) -> None:
    engine.load(iter([b"layers"]))
    assert unpacked.is_set()


def test_an_engine_that_says_nothing_is_named_with_the_time_it_had(engine: DockerEngine) -> None:
    engine.load(iter([b"layers"]))  # whose patience is not that of what follows
    with pytest.raises(DeadlineError, match=r"did not describe itself within 1 s") as reported:
        engine.facts()
    assert reported.value.node == "beta"
    assert "again" in reported.value.hint


class ClosingEngine(BaseHTTPRequestHandler):
    """Server that closes the first connections of each kind of request silently, as an engine that has just started."""

    silent: ClassVar[dict[str, int]] = {}

    def do_GET(self) -> None:
        self._answer("GET", b'{"ServerVersion": "20.10.24"}')

    def do_POST(self) -> None:
        self._answer("POST", b"")

    def _answer(self, method: str, body: bytes) -> None:
        if self.silent.get(method, 0):
            self.silent[method] -= 1
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def closing() -> Iterator[DockerEngine]:
    ClosingEngine.silent = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), ClosingEngine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        engine = DockerEngine("beta", lambda: docker.APIClient(base_url=url, version="1.41"), explain=lambda: "")
        yield engine
        engine.close()
        server.shutdown()
        thread.join()


def test_a_question_whose_connection_was_closed_is_asked_again_and_no_more(closing: DockerEngine) -> None:
    ClosingEngine.silent = {"GET": 1}
    assert closing.facts().version == "20.10.24"
    ClosingEngine.silent = {"GET": 2}
    with pytest.raises(EngineError, match="beta: no answer from the container engine"):
        closing.facts()


def test_what_must_not_happen_twice_is_not_asked_again(closing: DockerEngine) -> None:
    ClosingEngine.silent = {"POST": 1}
    with pytest.raises(EngineError, match="beta: no answer from the container engine"):
        closing.signal("any", "USR1")
    assert ClosingEngine.silent == {"POST": 0}


def test_a_connection_that_broke_is_an_engine_that_does_not_answer() -> None:
    def broken() -> docker.APIClient:
        raise paramiko.SSHException("SSH session not active")

    engine = DockerEngine("beta", broken, explain=lambda: "")
    with pytest.raises(EngineError, match="beta: no answer from the container engine: SSH session not active"):
        engine.container("any")


class PromptEngine(BaseHTTPRequestHandler):
    """Sends the output of a command together with the header of its answer, as of one that has ended at once."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/start"):
            self._answer(b'{"Id": "e1"}')
            return
        head = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        frames = ((1, b"1000\n"), (2, b"a warning\n"), (1, b""), (1, b"x" * 100_000))
        self.wfile.write(head + b"".join(struct.pack(">BxxxL", number, len(text)) + text for number, text in frames))
        self.close_connection = True

    def do_GET(self) -> None:
        self._answer(b'{"ExitCode": 3}')

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_output_that_comes_with_the_header_of_the_answer_is_not_lost() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), PromptEngine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        engine = DockerEngine("beta", lambda: docker.APIClient(base_url=url, version="1.41"), explain=lambda: "")
        done = engine.execute("any", ["id", "-u"])
        engine.close()
        server.shutdown()
        thread.join()
    assert (done.exit_code, done.stdout, done.stderr) == (3, "1000\n" + "x" * 100_000, "a warning\n")
