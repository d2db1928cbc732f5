"""Commands on a machine, whatever the login shell of its account: sh, csh, fish, or one with startup files that print.

sshd hands one line to that shell. Here it is a constant that all shells read alike, and starts `sh`, which reads the
command from its stdin: so no word of a command is ever quoted for a shell that is not known.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from threading import Event

_READY = "orch-sh-ready"
_REPLACED = 97
"""Exit code of another program in place of `sh` that took our first line for a command."""
_FIRST = f"exit {_REPLACED}"
START = (
    f'sh -c \'IFS= read -r line; test "$line" = "{_FIRST}" || {_FIRST}; echo {_READY}; echo {_READY} >&2; '
    'IFS= read -r line; eval "set -- $(printf %b "${line#?}")"; '
    'command -v "$1" >/dev/null || { echo "$1: not found" >&2; exit 127; }; exec "$@"\''
)
"""Program without a newline, `!`, backslash or quote within its quotes, which csh and fish read in ways of their own.

`command -v`: where the user may not read a folder of PATH, dash takes every absent program for a forbidden one.
"""
FIRST = f"{_FIRST}\n".encode()
_MARK = f"{_READY}\n".encode()
_MAX_REST = 4096
STARTUP_FILES = "~/.bashrc, ~/.zshenv, ~/.cshrc or config.fish"


def second_line(argv: Sequence[str]) -> bytes:
    """The command for `sh`, in one line of ASCII, as a comment: no other shell that reads it would run it.

    `read` takes it byte by byte from a pipe, so what follows in stdin is the command's own.
    """
    words = os.fsencode(shlex.join(argv))
    plain = (chr(byte) if 31 < byte < 127 and byte != 92 else f"\\0{byte:03o}" for byte in words)
    return f"#{''.join(plain)}\n".encode()


class Preface:
    """One output stream of a session: separates what the startup files print from what the command prints."""

    def __init__(self) -> None:
        self.ended = Event()
        """Set once `sh` has started; also at the end of the session."""
        self.seen = False
        self._before = b""

    def strip(self, chunk: bytes) -> bytes:
        """The part of the chunk that is the command's output."""
        if self.seen:
            return chunk
        before, mark, rest = (self._before + chunk).partition(_MARK)
        self._before = before[-_MAX_REST:]
        if mark:
            self.seen = True
            self.ended.set()
        return rest

    @property
    def last_line(self) -> str:
        """The last line before the command's output, harmless to a terminal."""
        lines = self._before.decode(errors="replace").split("\n")
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(one if one.isprintable() else "?" for one in line[:200])


def why_no_shell(exit_code: int, last_line: str, user: str) -> tuple[str, str]:
    """Reason and fix where the session ended and `sh` never started. `last_line` is of its output."""
    if exit_code == _REPLACED:
        return (
            f"another program ran in place of its shell: a startup file ({STARTUP_FILES}) replaces the shell of every "
            "session, as an unguarded `exec fish` does",
            "let it do so on a terminal only: [ -t 0 ] && exec fish",
        )
    return (
        f"its login shell runs no commands (exit code {exit_code}){f': {last_line}' if last_line else ''}",
        f"on it: sudo chsh -s /bin/bash {user}; or name another user; a startup file ({STARTUP_FILES}) may end it, too",
    )
