"""Reports of a command: messages and errors on stderr, data on stdout, and the exit code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from orchestrator import __version__
from orchestrator.render.printable import printable
from orchestrator.specs.errors import EXIT_OK, ConfigError, OrchError, PartialError, PreflightError

if TYPE_CHECKING:
    from orchestrator.render.progress import ProgressView

JSON_SCHEMA = 1
"""Version of what `write_json` writes: raised where a key is removed or gets another meaning."""


@dataclass(kw_only=True)
class Invocation:
    """One command line that runs, and the options that every command has."""

    words: tuple[str, ...] = ()
    command: str = ""
    """Such as `checkpoints ls`."""
    inventory: Path | None = None
    """Value of `-i`, before the command or after it."""
    commands: tuple[str, ...] = ()
    """Commands that take an inventory."""
    quiet: bool = False
    debug_file: Path | None = None
    written: set[str] = field(default_factory=set)
    """Notes that are written once, however often their cause is met."""
    closing: ExitStack = field(default_factory=ExitStack)
    """Contexts that end with the invocation."""


class _Invocations:
    """The command line that runs now; a command may run another one, as `doctor --fix` does."""

    def __init__(self) -> None:
        self.current = Invocation()

    @contextmanager
    def __call__(self, begun: Invocation) -> Iterator[None]:
        outer, self.current = self.current, begun
        try:
            with begun.closing:
                yield
        finally:
            if begun.debug_file:
                _write(f"debug: {begun.debug_file} (for a bug report; read it before you send it)")
            self.current = outer


invocation = _Invocations()


def report_error(error: OrchError) -> int:
    """Write what happened, where, and what to do next; return the exit code of the error's class."""
    return _report(error, error.node)


def _report(error: OrchError, where: str) -> int:
    _write(f"error: {where}: {error.message}" if where else f"error: {error.message}")
    if isinstance(error, ConfigError):
        for problem in error.problems:
            _write(f"  {problem}")
    if error.hint:
        _write(f"  → {error.hint}")
    return error.exit_code


def report_errors(errors: Iterable[OrchError | None]) -> list[OrchError]:
    """Report the errors, None left out, and return them. Several nodes with the same one share its lines."""
    found = [error for error in errors if error]
    groups: dict[tuple[str, ...], list[OrchError]] = {}
    for error in found:
        problems = error.problems if isinstance(error, ConfigError) else ()
        groups.setdefault((error.message, error.hint, *problems), []).append(error)
    for same in groups.values():
        _report(same[0], ", ".join(dict.fromkeys(error.node for error in same if error.node)))
    return found


def exit_code(failed: int, total: int) -> int:
    """Return 0 if no node failed, 4 if all did, 5 if some did."""
    if not failed:
        return EXIT_OK
    return PreflightError.exit_code if failed == total else PartialError.exit_code


def say(text: str) -> None:
    """Write a message to stderr, unless `--quiet`; stdout is for data. Text of nodes may be part of it."""
    if not invocation.current.quiet:
        _write(text)


def say_once(text: str) -> None:
    """Write a message unless this command line has written the same one."""
    written = invocation.current.written
    if text not in written:
        written.add(text)
        say(text)


def progress_view(*, quiet: bool = False, lines: bool = False, notes: bool = False) -> ProgressView:
    """Return a view of transfers and builds, silent with `--quiet`. `lines`, `notes`: see `ProgressView`."""
    from orchestrator.render.progress import ProgressView  # loads rich

    return ProgressView(quiet=quiet or invocation.current.quiet, lines=lines, notes=notes)


def write_json(data: Any) -> None:
    """Write data of the running command to stdout, in the envelope of docs/cli.md."""
    envelope = {"orch": __version__, "schema": JSON_SCHEMA, "command": invocation.current.command, "data": data}
    sys.stdout.write(json.dumps(envelope, indent=2) + "\n")


def write_line(text: str = "") -> None:
    """Write data to stdout and end the line. Text of nodes may be part of it."""
    sys.stdout.write(_lines(text))


def write_document(text: str) -> None:
    """Write a document to stdout as it is: no character of it may change."""
    sys.stdout.write(text)


def write_names(names: Iterable[str]) -> None:
    """Write the names to stdout, each once and on a line of its own."""
    for name in dict.fromkeys(names):
        write_line(name)


def _write(text: str) -> None:
    lines = _lines(text)
    if sys.stderr.isatty():
        lines = "".join(f"{line}\n" for line in _wrapped(lines.splitlines()))
    sys.stderr.write(lines)
    sys.stderr.flush()


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Wrap lines between words at the width of the terminal, but not hints, which hold commands."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        if len(line) <= width or line.lstrip().startswith("→"):
            yield line
        else:
            yield from wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _lines(text: str) -> str:
    return "".join(f"{printable(_hint(line))}\n" for line in text.split("\n"))


def _hint(line: str) -> str:
    return with_inventory(line) if line.lstrip().startswith("→") else line


def with_inventory(line: str) -> str:
    """A line to be pasted, with the inventory that was given by `-i`: otherwise it would use another one."""
    given, commands = invocation.current.inventory, invocation.current.commands
    if given is None or not commands or re.search(r"\s(-i|--inventory)\b", line):
        return line
    words = rf"(?<![\w./-])orch (?=(?:{'|'.join(map(re.escape, commands))})\b)"
    return re.sub(words, lambda _: f"orch -i {shlex.quote(str(given))} ", line)
