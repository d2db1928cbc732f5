"""Measure one TCP stream from node 0 to node 1, as `iperf` would: the best rate of a link.

python -m benchmarks.slow_lan.tcp_rank SECONDS
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence

PART = bytes(256 * 1024)


def main(argv: Sequence[str]) -> int:
    seconds, rank = float(argv[0]), int(os.environ["RANK"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server(place) as server:
            connection, _ = server.accept()
            with connection:
                _receive(connection)
    elif rank == 1:
        with _connected(place, time.monotonic() + 20) as connection:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                connection.sendall(PART)
    return 0


def _receive(connection: socket.socket) -> None:
    """The first quarter second is TCP's slow start, and not counted."""
    began, counted, space = 0.0, 0, bytearray(1 << 20)
    first = time.perf_counter()
    while got := connection.recv_into(space):
        now = time.perf_counter()
        if began:
            counted, last = counted + got, now
        elif now - first > 0.25:
            began = last = now
    rate = counted * 8 / (last - began)
    print("@orch " + json.dumps({"event": "tcp", "bits_per_s": rate}), flush=True)


def _connected(place: tuple[str, int], deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(place, timeout=20)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # the other process is still being started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
