"""Consent: a command that changes machines asks first. `--yes` agrees, `--json` never does, no terminal refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar

import typer

from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.replaced import replaced

Answer = Callable[[str, bool], "bool | str"]
"""Answers a question, given what an empty line means; one that names can answer, also with a text."""


def require_consent(*, yes: bool, look_first: str = "") -> None:
    """Raise UsageError without `--yes` and without a terminal to ask on: called before any work is done.

    `look_first`: the command that shows what would be done.
    """
    if not yes and not can_ask():
        look = f"; {look_first} shows what would be done" if look_first else ""
        raise UsageError("this asks before it changes anything, and there is no terminal to ask on",
                         hint=f"add --yes to agree{look}")  # fmt: skip


def can_ask() -> bool:
    """Return whether there is a terminal to ask on."""
    return _answering.get() is not None or sys.stdin.isatty()


def agreed(question: str, *, yes: bool, default: bool = False) -> bool:
    """Ask on stderr, which leaves stdout for data, and return whether the answer is yes."""
    require_consent(yes=yes)
    ask = _answering.get() or (lambda question, default: typer.confirm(question, default=default, err=True))
    return yes or bool(ask(question, default))


def chosen(question: str, names: Sequence[str], *, yes: bool, default: bool = False) -> tuple[str, ...]:
    """Ask on stderr for which of the names the answer is yes: all (`y`), none (`n`), some, or all but `!NAME`."""
    from orchestrator.specs.selection import select_names

    if yes or len(names) == 1:
        return tuple(names) if agreed(question, yes=yes, default=default) else ()
    require_consent(yes=yes)
    while True:
        if person := _answering.get():
            answer = person(question, default)
        else:
            usual = "y" if default else "n"
            answer = asked(f"{question} (y, n, names, or !NAME to leave one out)", default=usual).strip().lower()
        if answer in (True, "y", "yes", "all"):
            return tuple(names)
        if answer in (False, "n", "no"):
            return ()
        try:
            selected, count = select_names(str(answer), names, place="this list")
        except (ConfigError, UsageError) as error:
            sys.stderr.write(f"not understood: {error.message.removeprefix('--nodes: ')}; {error.hint}\n")
            continue
        return selected[:count]


def asked(question: str, *, default: str | None = None, hidden: bool = False) -> str:
    """Ask for a text on stderr. `hidden`: for a password, which is not shown. UsageError without a terminal."""
    if not can_ask():
        raise UsageError(f"no terminal to ask on: {question}")
    if writer := _writing.get():
        return writer(question)
    answer: str = typer.prompt(question, default=default, hide_input=hidden, err=True)
    return answer


_writing: ContextVar[Callable[[str], str] | None] = ContextVar("writing", default=None)


def writing_by(person: Callable[[str], str]) -> AbstractContextManager[None]:
    """Let `person` answer the questions for a text inside this context."""
    return replaced(_writing, person)


_answering: ContextVar[Answer | None] = ContextVar("answering", default=None)


def answering_by(person: Answer | None) -> AbstractContextManager[None]:
    """Answer questions by `person` inside this context: tests have no terminal. None: ask on the terminal."""
    return replaced(_answering, person)
