"""Consent: a command that changes machines asks first. `--yes` agrees, `--json` never does, no terminal refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


def agreed(question: str, *, yes: bool, default: bool = False, ends: bool = False) -> bool:
    """Ask on stderr, which leaves stdout for data, and return whether the answer is yes.

    `ends`: the command ends on a no, and says that nothing was done; so Ctrl-C is one, too.
    """
    require_consent(yes=yes)
    if yes:
        return True
    ask = _answering.get() or (lambda question, default: typer.confirm(question, default=default, err=True))
    try:
        with _line_ended():
            return bool(ask(question, default))
    except typer.Abort:
        if ends:
            return False
        raise


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
    with nullcontext() if hidden else _line_ended():  # after a hidden one, Typer ends the line
        answer: str = typer.prompt(question, default=default, hide_input=hidden, err=True)
    return answer


@contextmanager
def _line_ended() -> Iterator[None]:
    """End the line of a question that Ctrl-C has answered: the message about it is another one."""
    try:
        yield
    except typer.Abort:
        sys.stderr.write("\n")
        raise


_writing: ContextVar[Callable[[str], str] | None] = ContextVar("writing", default=None)


def writing_by(person: Callable[[str], str]) -> AbstractContextManager[None]:
    """Let `person` answer the questions for a text inside this context."""
    return replaced(_writing, person)


_answering: ContextVar[Answer | None] = ContextVar("answering", default=None)


def answering_by(person: Answer | None) -> AbstractContextManager[None]:
    """Answer questions by `person` inside this context: tests have no terminal. None: ask on the terminal."""
    return replaced(_answering, person)
