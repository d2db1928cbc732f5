"""Consent: what changes machines asks first. `--yes` grants it, `--json` never does, no terminal refuses it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import typer

from orchestrator.specs.errors import UsageError

Answer = Callable[[str, bool], bool]
"""Answers a question, given what an empty line means."""


def require_consent(*, yes: bool, look_first: str = "") -> None:
    """Raise UsageError where it was not granted and no one can be asked.

    To be called first, so that no work is done for nothing.

    `look_first`: the command that shows what would be done.
    """
    if not yes and _person() is None:
        look = f"; {look_first} shows what would be done" if look_first else ""
        raise UsageError("this asks before it changes anything, and there is no terminal to ask on",
                         hint=f"add --yes to agree{look}")  # fmt: skip


def can_ask() -> bool:
    """Whether there is a terminal, or what stands for one."""
    return _person() is not None


def agreed(question: str, *, yes: bool, default: bool = False) -> bool:
    """Whether somebody agrees. The question goes to stderr: with `--json` too, stdout is left for data."""
    require_consent(yes=yes)
    person = _person()
    return yes or (person is not None and person(question, default))


def _person() -> Answer | None:
    return _answering.get() or (_ask if sys.stdin.isatty() else None)


def _ask(question: str, default: bool) -> bool:
    return typer.confirm(question, default=default, err=True)


_answering: ContextVar[Answer | None] = ContextVar("answering", default=None)


@contextmanager
def answering_by(person: Answer | None) -> Iterator[None]:
    """Within it, questions are answered so: tests have no terminal. None: as the terminal has it."""
    token = _answering.set(person)
    try:
        yield
    finally:
        _answering.reset(token)
