"""Strangers at the port where the agents of a run meet: so many a second, of every kind, none with its token."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

LONGEST_S = 10.0
"""Seconds that a connection stays, unless it is cut off before."""
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Outcome of an attack."""

    seconds: float
    begun: Mapping[str, int]
    """Connections by kind."""
    refused: int
    """Connections that could not be opened."""
    cut_off: int
    """Ended by the coordinator, or by themselves."""
    stayed: int
    """Connections that were not cut off in all that time."""
    answers: frozenset[bytes] = field(repr=False)
    """Answers to them, without what is drawn at random."""


def attack(
    address: str, port: int, *, rate: float, seconds: float, also_while: Callable[[], bool] = lambda: False
) -> Attack:
    """`rate` connections a second, the kinds in turn, for this time and as long as `also_while`."""
    return asyncio.run(_attack(address, port, rate, seconds, also_while))


async def _attack(address: str, port: int, rate: float, seconds: float, also_while: Callable[[], bool]) -> Attack:
    begun, became, answers = Counter[str](), Counter[str](), set[bytes]()
    kinds = list(KINDS.items())
    began, number, running = time.monotonic(), 0, set[asyncio.Task[None]]()
    while (now := time.monotonic() - began) < seconds or also_while():
        while number <= now * rate:
            kind, act = kinds[number % len(kinds)]
            begun[kind] += 1
            task = asyncio.create_task(_one(address, port, act, became, answers))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.5 / rate)
    lasted = time.monotonic() - began
    for task in list(running):
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return Attack(
        seconds=lasted,
        begun=begun,
        refused=became["refused"],
        cut_off=became["cut off"],
        stayed=became["stayed"],
        answers=frozenset(answers),
    )


async def _one(
    address: str, port: int, act: Callable[[Stream], Awaitable[None]], became: Counter[str], answers: set[bytes]
) -> None:
    try:
        stream = await asyncio.wait_for(asyncio.open_connection(address, port), LONGEST_S)
    except (TimeoutError, OSError):
        became["refused"] += 1
        return
    try:
        await asyncio.wait_for(_stay(stream, act, answers), LONGEST_S)
        became["cut off"] += 1
    except TimeoutError:
        became["stayed"] += 1
    except OSError:
        became["cut off"] += 1
    finally:
        stream[1].transport.abort()


async def _stay(stream: Stream, act: Callable[[Stream], Awaitable[None]], answers: set[bytes]) -> None:
    """Wait until the connection is ended."""
    await act(stream)
    while message := await stream[0].read(1000):
        answers.add(message[:10])


async def _silent(_stream: Stream) -> None:
    """Says nothing."""


async def _slow(stream: Stream) -> None:
    for letter in b'{"run": "' * 10:
        stream[1].write(bytes([letter]))
        await stream[1].drain()
        await asyncio.sleep(0.5)


async def _wrong_token(stream: Stream) -> None:
    await stream[0].readline()
    greeting = {"run": "0102-1504-ab12.0", "node_rank": 1, "drawn": os.urandom(16).hex(), "proof": "0" * 64}
    stream[1].write(json.dumps(greeting).encode() + b"\n")


async def _rubbish(stream: Stream) -> None:
    stream[1].write(os.urandom(200) + b"\nGET / HTTP/1.1\r\n\r\n")


async def _huge(stream: Stream) -> None:
    for _ in range(50):
        stream[1].write(b"[" * 65536)
        await stream[1].drain()


async def _half_closed(stream: Stream) -> None:
    stream[1].write(b'{"ready": Infinity}')
    stream[1].write_eof()


async def _reset(stream: Stream) -> None:
    """Gone before it is greeted, without an end that TCP would tell of in order."""
    door: socket.socket = stream[1].get_extra_info("socket")
    door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream[1].transport.abort()


KINDS: dict[str, Callable[[Stream], Awaitable[None]]] = {
    "silent": _silent,
    "slow": _slow,
    "wrong token": _wrong_token,
    "rubbish": _rubbish,
    "huge": _huge,
    "half closed": _half_closed,
    "reset": _reset,
}
