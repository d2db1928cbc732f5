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
from orchestrator.render.printable import counted
from orchestrator.specs.errors import OrchError, SudoRefusal, SudoRefusedError, UsageError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.nodes.sudo import Password

TRIES = 2
"""Passwords that are sent to a node: many systems lock an account at the third wrong one (pam_faillock)."""
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
            min=0,
            help="Read the sudo password from this open file descriptor, where there is no terminal.",
        ),
    ] = None

    @property
    def can_ask(self) -> bool:
        """Whether there is a way to get a password."""
        return self.password_fd is not None or can_ask()

    def with_sudo(self, nodes: Sequence[Node]) -> tuple[dict[str, Node], dict[str, OrchError]]:
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
        return _Questions(ask=lambda _: line, tries=1).unlock(nodes)


@dataclass(frozen=True, kw_only=True)
class _Questions:
    """Questions for a password until each node has accepted one or has refused `tries` of them."""

    ask: Callable[[str], str]
    each: bool = False
    tries: int = TRIES

    def unlock(self, nodes: Sequence[Node]) -> tuple[dict[str, Node], dict[str, OrchError]]:
        from orchestrator.nodes.sudo import with_sudo

        opened: dict[str, Node] = {}
        errors: dict[str, OrchError] = {}
        refused: dict[str, set[Password]] = {node.name: set() for node in nodes}
        left, together = list(nodes), not self.each
        for _ in range(self.tries):
            given = self._asked([node.name for node in left], refused, together=together)
            # a password that a node has refused is not sent to it again
            outcomes = _proved([node for node in left if given[node.name] not in refused[node.name]], given)
            for node in left:
                error = outcomes.get(node.name, _REFUSED)
                if error is None:
                    opened[node.name] = with_sudo(node, given[node.name])
                elif isinstance(error, SudoRefusedError) and error.refusal is SudoRefusal.PASSWORD:
                    refused[node.name].add(given[node.name])
                else:
                    errors[node.name] = error
            wrong = [node for node in left if node.name not in opened and node.name not in errors]
            together = together and len(wrong) == len(left)  # refused by all: mistyped
            left = wrong
            if not left:
                break
        return opened, errors | {node.name: _given_up(node.name, len(refused[node.name])) for node in left}

    def _asked(
        self, names: Sequence[str], refused: Mapping[str, set[Password]], *, together: bool
    ) -> dict[str, Password]:
        from orchestrator.nodes.sudo import Password

        if together and len(names) > 1:
            before = "All of them refuse that one. " if refused[names[0]] else ""
            question = f"{before}sudo password for {counted(len(names), 'machine')} ({', '.join(names)})"
            return dict.fromkeys(names, Password(self.ask(question)))
        again = {name: f"{name} refuses that one. " if refused[name] else "" for name in names}
        return {name: Password(self.ask(f"{again[name]}sudo password for {name}")) for name in names}


_REFUSED = SudoRefusedError("refused before", refusal=SudoRefusal.PASSWORD)


def _proved(nodes: Sequence[Node], given: Mapping[str, Password]) -> dict[str, OrchError | None]:
    """Try each node's password there, once; return the errors, None where it is accepted."""
    from orchestrator.fleet.fan_out import fan_out
    from orchestrator.nodes.sudo import PROOF_TIMEOUT_S, prove

    outcomes = fan_out(nodes, lambda node: prove(node, given[node.name]), timeout_s=2 * PROOF_TIMEOUT_S)
    return {outcome.item.name: outcome.error for outcome in outcomes}


def _given_up(name: str, count: int) -> SudoRefusedError:
    what = "that password" if count == 1 else f"{count} passwords"
    return SudoRefusedError(
        f"sudo refuses {what}; nothing was changed there",
        refusal=SudoRefusal.PASSWORD,
        node=name,
        hint=f"{_again()} --nodes {name}",
    )


def _typed(question: str) -> str:
    try:
        return asked(question, hidden=True)
    except (typer.Abort, KeyboardInterrupt):
        say("nothing was changed")
        raise


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
