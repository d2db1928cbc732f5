"""The question whose a connection to torch's store is, and the answer of a node's agent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.agent.messages import MisfitError, values_of, whole
from trainer.agent.wire import Message

MOST_ASKED = 128
"""Connections in one question."""


@dataclass(frozen=True)
class StoreConnection:
    """A connection to the store, as its client sees it."""

    address: str
    port: int
    to_address: str
    to_port: int


def question(asked: Sequence[StoreConnection]) -> Message:
    return {"whose": [asdict(one) for one in asked]}


def read_question(line: bytes) -> list[StoreConnection]:
    """Decode a question of rank 0's agent. MisfitError: it is invalid."""
    asked = values_of(line).get("whose")
    if not isinstance(asked, list) or len(asked) > MOST_ASKED or any(not isinstance(one, dict) for one in asked):
        raise MisfitError("not a question about connections")
    return [
        StoreConnection(
            _address(one, "address"), whole(one, "port", most=65535),
            _address(one, "to_address"), whole(one, "to_port", most=65535),
        )
        for one in asked
    ]  # fmt: skip


def read_answer(line: bytes, asked: int) -> frozenset[int]:
    """Decode the answer of a node: places in the question. MisfitError: it is invalid."""
    own = values_of(line).get("own")
    if not isinstance(own, list) or len(own) > asked:
        raise MisfitError("not an answer about connections")
    if any(type(place) is not int or not 0 <= place < asked for place in own):
        raise MisfitError("an answer about connections that were not asked for")
    return frozenset(own)


def _address(values: dict[str, Any], key: str) -> str:
    text = values.get(key)
    try:
        return socket.inet_ntoa(socket.inet_aton(text if isinstance(text, str) and len(text) <= 15 else ""))
    except OSError:
        raise MisfitError(f"{key} is not an IPv4 address") from None
