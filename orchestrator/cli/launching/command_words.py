"""The words of a command after `--`: separate them from orch's own options, and check that they can run."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.report import say, write_line
from orchestrator.plan.command import CONTAINER_DATA
from orchestrator.plan.launchers import RankCommand, without_launcher
from orchestrator.specs.errors import UsageError
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.program import Program
from orchestrator.specs.replaced import replaced

if TYPE_CHECKING:
    from orchestrator.fleet.planning.look_ahead import CheckedWords

WORDS_LAST = {"allow_interspersed_args": False}
"""Settings of a command that ends with a COMMAND: all words after its first belong to it, as with docker."""
WORDS_AFTER_AN_ARGUMENT = {"ignore_unknown_options": True}
"""The same where an argument precedes COMMAND, with options in between."""


def with_command(context: typer.Context, options: LaunchOptions, command: Sequence[str] | None) -> LaunchOptions:
    """Return the options with the command as each rank runs it, and with the variables of a launcher that is left
    out; those of --env decide. Raises as `rank_command`."""
    found = rank_command(context, command)
    return replace(options, command=found.words, environment={**found.environment, **options.environment})


def rank_command(context: typer.Context, command: Sequence[str] | None) -> RankCommand:
    """Return the command as each rank runs it; show the help that it asks for, and end the program.

    UsageError: an option of orch among its words, or a launcher that cannot be left out.
    """
    words = list(command or ())
    typed: list[str] = list(context.obj or ())
    if words and "--" not in typed:
        _must_be_unambiguous(context, typed, words)
    found = without_launcher(words)
    if found.note:
        say(found.note)
    if found.words and not Program.of(found.words).is_own and {"-h", "--help"} & set(found.words):
        write_line(look_at(found.words, prog=f"{context.command_path} --").help.rstrip())
        raise typer.Exit
    return found


def must_run(prog: str, options: LaunchOptions, *, continues: bool = False) -> CheckedWords:
    """Check that these words can run, before any node is asked. UsageError or ConfigError: they cannot.

    `continues`: data that the options do not name is that of an earlier run, which was looked at when that was
    launched. Of what was seen, return only what holds for this launch: with data that is already on the nodes nothing
    is needed.
    """
    from orchestrator.fleet.planning.look_ahead import CheckedWords

    if options.program.is_own or (options.resume and not options.command):  # an earlier attempt's were looked at then
        return CheckedWords()
    from orchestrator.fleet.planning.data import default_data, require_folder  # not for `orch launch --help`

    brought = continues or any(mount.target == CONTAINER_DATA for mount in options.mounts)
    data = options.data or (() if options.resume or brought else default_data())
    checked = look_at(
        options.program.words,
        prog=f"{prog} --",
        data=next(map(require_folder, data), None),
        folder=options.workdir if options.program.brings_own_code else None,
        environment=options.environment,
    )
    return replace(checked, needs="") if options.resume or brought else checked


def look_at(words: Sequence[str], **how: Any) -> CheckedWords:
    """Check the words of a workload on this computer, with the trainer's own parser."""
    return _look.get()(words, **how)


def look(words: Sequence[str], **how: Any) -> CheckedWords:
    """Check the words by starting the trainer."""
    from orchestrator.fleet.planning.look_ahead import look_ahead
    from orchestrator.nodes.local import LocalNode

    with closing(LocalNode()) as controller:
        return look_ahead(controller, words, **how)


_look: ContextVar[Callable[..., CheckedWords]] = ContextVar("look", default=look)


def looking_by(other: Callable[..., CheckedWords]) -> AbstractContextManager[None]:
    """Check words with `other` inside this context: tests start no interpreter for what is known already."""
    return replaced(_look, other)


def _must_be_unambiguous(context: typer.Context, typed: list[str], words: list[str]) -> None:
    """UsageError: without `--`, an option that orch and the workload both know is ambiguous."""
    own = {option for parameter in context.command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {option for option in own if option.startswith("-")}
    if words[0].startswith("-"):
        close = difflib.get_close_matches(words[0].partition("=")[0], sorted(options), 1)
        raise UsageError(
            f"no option {words[0]} of {context.command_path}" + (f" (did you mean {close[0]}?)" if close else ""),
            hint=f"{context.command_path} --help   # options of the training stand after --",
        )
    first = typed.index(words[0])
    before, after = typed[:first], typed[first:]
    corrected = shlex.join(["orch", *before, "--", *after])
    arguments_before = [p for p in context.command.params if p.param_type_name == "argument" and p.name != "command"]
    stray = next((word for word in words[1:] if word.partition("=")[0] in options), "")
    if arguments_before or stray:
        question = f"{stray} follows it: is it orch's?" if stray else "what follows it is not orch's"
        raise UsageError(
            f"write -- before {words[0]}: {question}",
            hint=corrected + (f"   # with {stray} before the -- where it is meant for orch" if stray else ""),
        )
