"""The order in which threads start collectives: the same on all ranks, whichever thread is ready first.

On a GPU a collective is put into a CUDA stream and holds up what comes after it until all ranks are there. Where two
ranks start the same collectives in different orders, each waits for the other for ever (NVIDIA/nccl#195, #1174).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

APART = 1.5
"""Buckets by which one collective of a bucket comes after its last: while the bucket decodes and encodes again, the
next one's values are on their way. More would hold back the last collectives until the backward pass has ended."""


class Turns:
    """One round of turns is one exchange of all buckets."""

    def __init__(self, collectives: Sequence[int], threads: int) -> None:
        """`collectives`: of each bucket, one after another; `threads`: that work on the buckets, bucket by bucket."""
        self._order = in_order(collectives, threads)
        self._at = 0
        self._failure: BaseException | None = None
        self._passed = threading.Condition()

    @contextmanager
    def take(self, bucket: int) -> Iterator[None]:
        """Waits for the bucket's next turn. Within, one collective is to be started, but not waited for."""
        with self._passed:
            self._passed.wait_for(lambda: self._failure or self._order[self._at] == bucket)
            if self._failure:
                raise self._failure
            yield
            self._at = (self._at + 1) % len(self._order)
            self._passed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Fail all threads that wait for a turn: it would never come."""
        with self._passed:
            self._failure = self._failure or failure
            self._passed.notify_all()


def in_order(collectives: Sequence[int], threads: int) -> list[int]:
    """Order the collectives of the buckets, from the first to the last.

    A thread takes every `threads`-th bucket: the collectives of one must all come before its next one's.
    """
    apart = min(APART, (threads - 0.5) / max(1, max(collectives) - 1))
    begins = [(bucket + apart * nth, bucket) for bucket, count in enumerate(collectives) for nth in range(count)]
    return [bucket for _, bucket in sorted(begins)]
