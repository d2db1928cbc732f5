"""One reader of text from another machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.specs.errors import OrchError


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader, with valid texts and the errors that it declares."""

    read: Callable[[str], object]
    texts: Sequence[str]
    """Valid ones."""
    declared: tuple[type[Exception], ...] = (OrchError,)
