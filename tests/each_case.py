"""Many cases in one test, where a test each would cost more than its check: all that fail are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def failures_of(check: Callable[..., object], cases: Iterable[Any]) -> list[str]:
    """Call `check` with every case, a tuple as several arguments: a line for each that raises an error."""
    failures = []
    for case in cases:
        try:
            check(*case) if isinstance(case, tuple) else check(case)
        except Exception as error:
            failures.append(f"{case}: {type(error).__name__}: {error}")
    return failures
