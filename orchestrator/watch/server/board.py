"""TensorBoard behind the guard of the dashboard: it listens on a socket file that other users cannot open (ADR 64)."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

BOARD_HOST = "127.0.0.2"
"""Address other than that of the dashboard: browsers send a cookie to every port of a host, and TensorBoard shows
files of nodes."""
PROGRAM = """
from absl import app
from tensorboard import default, main_lib, program

class SocketServer(program.WerkzeugServer):
    def get_url(self):
        return "http://localhost:0/"

    def print_serving_message(self):
        pass

main_lib.global_init()
board = program.TensorBoard(plugins=default.get_plugins(), server_class=SocketServer)
app.run(board.main, flags_parser=board.configure)
"""
"""Program for the Python that has TensorBoard: its own program, which cannot write the address of a socket file."""
ANSWER_S = 120.0
LONGEST_BODY = 1 << 20
"""Bytes of a request: names of runs and tags."""
CHUNK = 1 << 16
_OF_ONE_CONNECTION = {
    "connection", "content-length", "cookie", "date", "host", "keep-alive", "server", "set-cookie", "te", "trailer",
    "transfer-encoding", "upgrade",
}  # fmt: skip
"""Headers that are not passed on; nor is a cookie, in either direction."""


def board_words(socket_file: Path) -> tuple[str, ...]:
    """Options of TensorBoard. `--load_fast`: otherwise its data server listens on a port that everyone here reaches."""
    return ("--logdir", ".", "--host", f"unix://{socket_file}", "--port", "0", "--load_fast", "false")


class BoardProxy:
    """ASGI application that passes requests on to the socket file, and the answers back."""

    def __init__(self, socket_file: Path) -> None:
        self._file = socket_file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, body = Request(scope, receive), bytearray()
        chunks = request.stream()
        too_long = int(request.headers.get("content-length", 0)) > LONGEST_BODY  # the server has checked the number
        try:
            while not too_long and (chunk := await anext(chunks, b"")):
                body += chunk
                too_long = len(body) > LONGEST_BODY
        except ClientDisconnect:
            return
        if too_long:
            await PlainTextResponse("413: the request is too long\n", status_code=413)(scope, receive, send)
            return
        answer = await run_in_threadpool(self._answer, request, bytes(body))
        await answer(scope, receive, send)

    def _answer(self, request: Request, body: bytes) -> Response:
        path = request.scope.get("raw_path", b"/").decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        connection = _SocketConnection(self._file)
        try:
            connection.request(
                request.method,
                f"{path}?{query}" if query else path,
                body=body or None,
                headers=dict(_passed_on(request.headers.items())),
            )
            answer = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            return PlainTextResponse(f"502: TensorBoard does not answer: {error}\n", status_code=502)
        passed = StreamingResponse(_chunks(connection, answer), status_code=answer.status)
        for name, value in _passed_on(answer.getheaders()):
            passed.headers.append(name, value)
        passed.headers["x-frame-options"] = "SAMEORIGIN"  # some of its plugins are frames
        return passed


def _passed_on(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        if name.lower() not in _OF_ONE_CONNECTION:
            yield name, value


def _chunks(connection: HTTPConnection, answer: HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := answer.read(CHUNK):
            yield chunk
    finally:
        connection.close()


class _SocketConnection(HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, file: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._file = file

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._file))
