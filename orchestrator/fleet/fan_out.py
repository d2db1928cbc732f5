"""Run one function on many nodes at once: one outcome per node, in order, none lost, bounded in number and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from orchestrator.fleet.faults import as_error
from orchestrator.nodes.interface import Progress
from orchestrator.specs.errors import DeadlineError, OrchError

Item = TypeVar("Item")
Result = TypeVar("Result")

Notify = Callable[[str, Progress], None]
"""Callback for progress: name of the node, and what happens there."""
LIMIT = 64
"""Measured: 50 SSH connections cost about 10 ms of processor time each; the servers are what one waits for."""


@dataclass(frozen=True)
class Outcome(Generic[Item, Result]):
    """Result or error of the work on one item."""

    item: Item
    result: Result | None = None
    error: OrchError | None = None

    def value(self) -> Result:
        """The result; the error is raised."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None only where Result allows it


def fan_out(
    items: Sequence[Item], work: Callable[[Item], Result], *, timeout_s: float = 120.0, limit: int = LIMIT
) -> tuple[Outcome[Item, Result], ...]:
    """Run `work` on every item, at most `limit` at a time.

    Any exception becomes the outcome of its item: an `OrchError` unchanged, another one converted by `as_error`. A
    `BaseException` such as an interrupt is raised. Work that has not ended after `timeout_s` is a `DeadlineError`
    outcome: its thread ends with the process, and work that has not started never does.
    """
    waiting, done = iter(enumerate(items)), SimpleQueue[tuple[int, "Outcome[Item, Result] | BaseException"]]()
    late, lock = Event(), Lock()

    def in_turn() -> None:
        while not late.is_set():
            with lock:
                turn = next(waiting, None)
            if turn is None:
                return
            index, item = turn
            done.put((index, one(item)))

    def one(item: Item) -> Outcome[Item, Result] | BaseException:
        try:
            return Outcome(item, result=work(item))
        except Exception as error:
            return Outcome(item, error=as_error(error, node=_name(item)))
        except BaseException as error:
            return error

    def overdue(item: Item) -> Outcome[Item, Result]:
        return Outcome(item, error=DeadlineError(f"no answer in {timeout_s:.0f} s", node=_name(item)))

    for _ in range(min(limit, len(items))):
        Thread(target=in_turn, daemon=True).start()
    deadline = time.monotonic() + timeout_s
    ended: dict[int, Outcome[Item, Result]] = {}
    while len(ended) < len(items):
        try:
            index, outcome = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            late.set()
            break
        if isinstance(outcome, BaseException):
            late.set()
            raise outcome
        ended[index] = outcome
    return tuple(ended.get(index) or overdue(item) for index, item in enumerate(items))


def results_of(outcomes: Sequence[Outcome[Item, Result]]) -> list[Result]:
    """The results; raise the first error, with the names of the other nodes that failed."""
    failed = [outcome.error for outcome in outcomes if outcome.error]
    if others := [error.node for error in failed[1:] if error.node]:
        failed[0].hint = f"{failed[0].hint} (also: {', '.join(others)})".strip()
    if failed:
        raise failed[0]
    return [outcome.value() for outcome in outcomes]


def copy_from_first(
    sources: Sequence[Item],
    copy: Callable[[Item], object],
    target: str,
    passed_over: Callable[[Item, OrchError], object] = lambda _source, _error: None,
) -> None:
    """Copy from the first source that works. An error of the target node itself, or of the last source, is raised."""
    for number, source in enumerate(sources):
        try:
            copy(source)
            return
        except OrchError as error:
            if error.node == target or number == len(sources) - 1:
                raise
            passed_over(source, error)


def begin(work: Callable[[], Result]) -> Future[Result]:
    """Start `work` on a daemon thread, which ends with the process (those of an executor are joined at exit)."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # otherwise the future would never complete
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _name(item: object) -> str:
    """The name of a node, of an object with a `node` (a container, a part of a check), or of anything else."""
    named = getattr(item, "node", item)
    return str(getattr(named, "name", named))
