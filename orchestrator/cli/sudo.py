"""The sudo password: asked for once, held in memory, and sent to the nodes that ask for it alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.consent import asked, can_ask
from orchestrator.cli.report import invocation, say
from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.sudo import PROOF_TIMEOUT_S, Password, prove, with_sudo
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, OrchError, SudoRefusal, SudoRefusedError, UsageError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node

LONGEST = 1024
FROM_FILE = "--sudo-password-fd 3 3< FILE"


@dataclass(frozen=True, kw_only=True)
class SudoPassword:
    """The options that say where the sudo password comes from."""

    ask_each: Annotated[
        bool, typer.Option("--ask-each", help="Ask for the sudo password of each node, not once for all.")
    ] = False
    password_fd: Annotated[
        int | None,
        typer.Option(
            "--sudo-password-fd",
            metavar="FD",
            help="Read the sudo password from this open file descriptor, where there is no terminal.",
        ),
    ] = None

    @property
    def can_ask(self) -> bool:
        """True if there is a way to get a password."""
        return self.password_fd is not None or can_ask()

    def unlock(self, nodes: Sequence[Node]) -> tuple[dict[str, Node], dict[str, OrchError]]:
        """Ask for the password of these nodes and try it on each; return those that accept it, by name, and the errors
        of the others. UsageError without a way to ask."""
        if not self.can_ask:
            names, words = ", ".join(node.name for node in nodes), invocation.current.words
            typed = shlex.join([*words, *(() if "--yes" in words else ("--yes",))])
            raise UsageError(
                f"sudo asks for a password on {names}, and there is no terminal to ask on; nothing was changed",
                hint=f"orch {typed} {FROM_FILE}   # its first line is the password",
            )
        if self.password_fd is None:
            return _Questions(ask=_typed, each=self.ask_each).unlock(nodes)
        if self.ask_each:
            raise UsageError("--ask-each asks on a terminal", hint=f"{_again()} --nodes {nodes[0].name} {FROM_FILE}")
        line = _first_line(self.password_fd)
        return _Questions(ask=lambda _: line, again=False).unlock(nodes)


@dataclass(frozen=True, kw_only=True)
class _Questions:
    """Questions for a password. At most one wrong one reaches the sudo of a node."""

    ask: Callable[[str], str]
    each: bool = False
    again: bool = True
    """True if a node that is known to have another password is asked for."""

    def unlock(self, nodes: Sequence[Node]) -> tuple[dict[str, Node], dict[str, OrchError]]:
        names = [node.name for node in nodes]
        if self.each or len(names) == 1:
            given = {name: Password(self.ask(f"sudo password for {name}")) for name in names}
        else:
            given = self._one_for(names)
        opened, errors = _proved(nodes, given, doubt=self.again)
        doubted = [name for name in errors if _is_doubt(errors[name])]
        if doubted:
            if len(doubted) == len(names) > 1 and not self.each:  # mistyped
                given = self._one_for(names, "All of them refuse that one. ")
            else:
                given = {
                    name: Password(self.ask(f"{name} refuses that one. sudo password for {name}")) for name in doubted
                }
            late, left = _proved([node for node in nodes if node.name in doubted], given, doubt=False)
            opened |= late
            errors = {name: error for name, error in errors.items() if name not in doubted} | left
        return opened, errors

    def _one_for(self, names: Sequence[str], before: str = "") -> dict[str, Password]:
        question = f"{before}sudo password for {counted(len(names), 'machine')} ({', '.join(names)})"
        return dict.fromkeys(names, Password(self.ask(question)))


def _is_doubt(error: OrchError) -> bool:
    return isinstance(error, SudoRefusedError) and error.refusal is SudoRefusal.DOUBTED


def _proved(
    nodes: Sequence[Node], given: Mapping[str, Password], *, doubt: bool
) -> tuple[dict[str, Node], dict[str, OrchError]]:
    """Try each node's password there; return the nodes that accept it, and the errors of the others."""
    outcomes = fan_out(nodes, lambda node: prove(node, given[node.name], doubt=doubt), timeout_s=3 * PROOF_TIMEOUT_S)
    errors = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    for name, error in errors.items():
        if not error.hint:
            error.hint = f"{_again()} --nodes {name}"
    return {node.name: with_sudo(node, given[node.name]) for node in nodes if node.name not in errors}, errors


def _typed(question: str) -> str:
    try:
        return asked(question, hidden=True)
    except (typer.Abort, KeyboardInterrupt):
        say("nothing was changed")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _again() -> str:
    return f"orch {invocation.current.command}"


def _first_line(descriptor: int) -> str:
    """First line of an open file. UsageError: it is not open, is a terminal, or is empty."""
    name = f"--sudo-password-fd {descriptor}"
    if os.isatty(descriptor):
        raise UsageError(f"{name} is a terminal, which would show the password", hint="leave it out: orch asks then")
    try:
        with os.fdopen(os.dup(descriptor), encoding="utf-8") as file:
            line = file.readline(LONGEST).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {error}", hint=f"{_again()} {FROM_FILE}") from error
    if not line:
        raise UsageError(f"{name} has no password in its first line", hint=f"{_again()} {FROM_FILE}")
    return line
