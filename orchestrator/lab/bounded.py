"""A call that must end: what waits on an engine's stream has no time limit of its own."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from orchestrator.specs.errors import DeadlineError

Result = TypeVar("Result")


def bounded(call: Callable[[], Result], *, timeout_s: float, what: str, node: str) -> Result:
    """Its result, or its exception; `DeadlineError` after `timeout_s`, the call left to die with the process.

    Met with engine 20.10: a command that the kernel kills for want of memory while it starts never closes its stream.
    """
    done = SimpleQueue[tuple[list[Result], Exception | None]]()

    def work() -> None:
        try:
            done.put(([call()], None))
        except Exception as error:
            done.put(([], error))

    Thread(target=work, daemon=True).start()
    try:
        result, error = done.get(timeout=timeout_s)
    except Empty:
        raise DeadlineError(f"{what} did not end within {timeout_s:g} s", node=node) from None
    if error:
        raise error
    return result[0]
