"""Values that hold inside a context: how a caller, or a test, takes the place of a terminal, a process or a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def replaced(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give the variable this value inside the context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
