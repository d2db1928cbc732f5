"""Positions of all ranks before the first step: one that waits in vain says for which ranks, and where these are.

gloo, NCCL and torch's store end a wait by its deadline (`pg_timeout_s`), but name no rank. Each rank notes in the store
that all share where it is, by a thread that ends before the first step: its collectives go as they did.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from trainer.agent import heartbeat
from trainer.agent.rank_exit import classify_exception
from trainer.engine.group import Group
from trainer.errors import TrainerError

EVERY_S = 0.5
LONGEST = 200
"""Maximum length of a position: it comes from another machine."""


@contextmanager
def naming_awaited(group: Group) -> Iterator[None]:
    """Name in the error of a collective the peers that do not come.

    NCCL's own watchdog ends the process instead, as no call on the CPU waits there; its message names the collective.
    """
    if group.store is None:
        yield
        return
    ended = threading.Event()
    # Connections of its own: the main thread's may be in use for as long as it waits.
    noting = replace(group, store=group.store.clone())  # type: ignore[attr-defined]  # torch's own gap
    threading.Thread(target=_note, args=(noting, ended), daemon=True, name="positions").start()
    try:
        yield
    except RuntimeError as error:
        ended.set()
        if not classify_exception(error).lost_peer:
            raise
        explained = TrainerError(f"{error}; {_awaited(group)}")
        raise explained.with_traceback(error.__traceback__) from error
    finally:
        ended.set()


def _note(group: Group, ended: threading.Event) -> None:
    noted = ""
    assert group.store is not None  # noqa: S101  # a rank alone waits for no other
    with suppress(RuntimeError):  # the store's host is gone: the collectives fail, too
        while not ended.is_set():
            if (now := _position()) != noted:
                group.store.set(_key(group.place.rank), f"({group.place.label}): {now}")
                noted = now
            ended.wait(EVERY_S)


def _awaited(group: Group) -> str:
    own, everyone = _position(), range(group.place.world_size)
    here = f"{group.place.name} waited at {own}"
    try:
        noted = {rank: _read(group, rank) for rank in everyone if rank != group.place.rank}
    except RuntimeError as error:
        return f"{here}; where the others are is not known: {error}"
    elsewhere = [
        f"rank {rank} {where}"
        for rank, where in noted.items()
        if not where.endswith((f": {own}", heartbeat.RESTING))  # one that is left out is not waited for
    ]
    return f"{here} for {', '.join(elsewhere)}" if elsewhere else f"{here}, as did all other ranks"


def _read(group: Group, rank: int) -> str:
    key, store = _key(rank), group.store
    assert store is not None  # noqa: S101  # a rank alone waits for no other
    return store.get(key)[:LONGEST].decode(errors="replace") if store.check([key]) else "(not begun)"


def _key(rank: int) -> str:
    return f"start/{rank}"


def _position() -> str:
    part, exchange = heartbeat.position()
    return f"{part or 'start'}, {f'in {exchange}' if exchange else 'in no collective'}"
