"""Runs on a node, inside its training image or by its own python3: hear peers and try to reach them, over TCP.

    listen ADDRESS MASTER_PORT COUNT SECONDS TOKEN   opens ports, leaves a process of its own behind, tells the ports
    dial TOKEN ADDRESS:PORT …                        tries all of them at once, tells how each ended
    end PID TOKEN                                    ends the process that `listen` left behind

The source is handed to `python3 -c`, so it needs nothing but the standard library, of Python 3.7 or newer. A peer shows
the token first: without it a connection gets no answer, so a stranger is neither served nor taken for a peer. The
listener ends by itself after SECONDS, whatever becomes of those who started it.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Sequence  # noqa: UP035  # collections.abc has it from Python 3.9 on

DEADLINE_S = 2.0
"""Seconds for a connection, and then for every silence."""
DIALS_END_S = 8.0
GREETING = 16
PAYLOAD = 64 * 1024
"""Bytes that fill many packets of full size: a link that passes only small packets loses them."""
ENDED = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.EACCES: "refused",  # by a rule for what goes out of this node
    errno.EPERM: "refused",
    errno.ETIMEDOUT: "timed out",
}


def listen(address: str, master_port: int, count: int, seconds: int, token: bytes) -> dict[str, Any]:
    """Open the rendezvous port (0: without it), unless it is taken, and `count` ports of the kernel's choice."""
    sockets, taken = [], False
    for port in [master_port] * bool(master_port) + [0] * count:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(64)
        except OSError as error:
            server.close()
            if error.errno != errno.EADDRINUSE or not port:
                return {"error": f"{address}: {error.strerror}"}
            taken = True
            continue
        sockets.append(server)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        serve_aside(sockets, seconds, token, ready, tell)
    os.close(tell)
    os.read(ready, 1)  # it listens, and holds none of our own streams
    ports = [server.getsockname()[1] for server in sockets]
    return {"ports": ports, "taken": taken, "pid": child}


def serve_aside(sockets: Sequence[socket.socket], seconds: int, token: bytes, ready: int, tell: int) -> None:
    """The process left behind: it outlives the command that started it, but not its time."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    signal.alarm(seconds)  # without a handler: the kernel ends it
    os.close(ready)
    os.write(tell, b".")
    os.close(tell)
    for server in sockets:
        threading.Thread(target=serve, args=(server, token), daemon=True).start()
    time.sleep(seconds)
    os._exit(0)


def serve(server: socket.socket, token: bytes) -> None:
    while True:
        connection = server.accept()[0]
        threading.Thread(target=answer, args=(connection, token), daemon=True).start()


def answer(connection: socket.socket, token: bytes) -> None:
    """Something small, then something large, for who knows the token."""
    with connection:
        try:
            connection.settimeout(3 * DEADLINE_S)
            if hmac.compare_digest(receive(connection, len(token)), token):
                connection.sendall(payload(token)[:GREETING])
                connection.sendall(payload(token))
                connection.recv(1)  # until the other side is done
        except OSError:
            return  # which the other side sees and tells


def dial(token: bytes, targets: Sequence[tuple[str, int]]) -> list[list[Any]]:
    """Try each target, in order: address, port, end of the try, milliseconds, further text."""
    outcomes = [[address, port, "timed out", 1000 * DIALS_END_S, ""] for address, port in targets]

    def one(index: int, address: str, port: int) -> None:
        begin = time.monotonic()
        ended, detail = try_once(address, port, token)
        outcomes[index] = [address, port, ended, round(1000 * (time.monotonic() - begin), 2), detail]

    threads = []
    for index, (address, port) in enumerate(targets):
        threads.append(threading.Thread(target=one, args=(index, address, port), daemon=True))
        threads[-1].start()
    end = time.monotonic() + DIALS_END_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return outcomes


def try_once(address: str, port: int, token: bytes) -> tuple[str, str]:
    """Return the end of the try, and further text."""
    try:
        connection = socket.create_connection((address, port), timeout=DEADLINE_S)
    except socket.timeout:  # noqa: UP041  # a TimeoutError from Python 3.10 on
        return "timed out", "no answer to the first packet"
    except OSError as error:
        return ended_by(error)
    with connection:
        try:
            connection.settimeout(DEADLINE_S)
            connection.sendall(token)
            greeting = receive(connection, GREETING)
        except socket.timeout:  # noqa: UP041  # a TimeoutError from Python 3.10 on
            return "timed out", "connected, then silence"
        except OSError as error:
            return ended_by(error)
        if greeting != payload(token)[:GREETING]:
            return "reset", "something else answers there"
        return receive_large(connection, payload(token))


def ended_by(error: OSError) -> tuple[str, str]:
    return ENDED.get(error.errno or 0, "reset"), error.strerror or str(error)


def receive_large(connection: socket.socket, wanted: bytes) -> tuple[str, str]:
    """All of it, as it was sent."""
    got = b""
    try:
        while len(got) < len(wanted):
            piece = connection.recv(PAYLOAD)
            if not piece:
                return "cut short", f"{len(got)} of {len(wanted)} bytes came"
            got += piece
    except socket.timeout:  # noqa: UP041  # a TimeoutError from Python 3.10 on
        return "cut short", f"{len(got)} of {len(wanted)} bytes came"
    except OSError as error:
        return ended_by(error)
    return ("ok", "") if got == wanted else ("reset", "the bytes were changed on the way")


def receive(connection: socket.socket, size: int) -> bytes:
    """This many bytes, or fewer where the other side ends."""
    got = b""
    while len(got) < size:
        piece = connection.recv(size - len(got))
        if not piece:
            break
        got += piece
    return got


def payload(token: bytes) -> bytes:
    return (hashlib.sha256(b"answer " + token).digest() * (PAYLOAD // 32))[:PAYLOAD]


def end(pid: int, token: bytes) -> dict[str, Any]:
    """End a process whose command line holds the token: numbers are used again, so that another one is not ours."""
    try:
        if token in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return {"ended": False}  # gone already
    return {"ended": True}


def main(words: list[str]) -> Any:
    verb = words.pop(0)
    if verb == "listen":
        address, port, count, seconds, token = words
        return listen(address, int(port), int(count), int(seconds), token.encode())
    if verb == "dial":
        targets = [(target.rpartition(":")[0], int(target.rpartition(":")[2])) for target in words[1:]]
        return dial(words[0].encode(), targets)
    return end(int(words[0]), words[1].encode())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads that still wait are not waited for
