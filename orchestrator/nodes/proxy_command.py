"""The ProxyCommand of the user's own SSH configuration, run as ssh runs it: its stdin and stdout are the connection."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from threading import Lock

from orchestrator.specs.errors import ConfigError

END_S = 2.0
"""Time that a command has to end by itself, then after SIGTERM."""
CONNECT_S = 30.0
"""Timeout of a connection through a command: cloudflared and tsh fetch a token first."""
_TOKEN = re.compile("%(.?)")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]{0,254}")
_MAX_ERRORS = 64 * 1024


def expanded(command: str, values: Mapping[str, str]) -> str:
    """The command with its tokens (`%h`, `%n`, `%p`, `%r`) replaced. ConfigError: another one, or a value that a shell
    would read as more than a word: values may come from an inventory, the command never does."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] not in values:
            raise ConfigError(f"the ProxyCommand {command[:200]!r} has {match[0]}, which ssh does not replace there")
        if not _WORD.fullmatch(values[match[1]]):
            raise ConfigError(f"the ProxyCommand is not run with {values[match[1]][:80]!r} for {match[0]}")
        return values[match[1]]

    return _TOKEN.sub(value, command)


class ProxyCommand:
    """A running command as the socket of a connection. Its process, and what it started, end with the connection."""

    def __init__(self, command: str) -> None:
        """OSError: the shell cannot be started."""
        self._socket, theirs = socket.socketpair()
        self._errors = TemporaryFile()  # noqa: SIM115  # closed with the connection
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                    stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors, start_new_session=True,
                )  # fmt: skip
        except OSError:
            self._socket.close()
            self._errors.close()
            raise
        self._lock = Lock()
        """paramiko's thread may close it at any time."""
        self._ended = False
        """True if it has closed its end: then its exit code follows at once."""
        self._last_line = ""
        self._code: int | None = None
        """Its exit code, where it ended before the connection did."""

    @property
    def _closed(self) -> bool:
        """True if it is closed: paramiko reads a socket's private name."""
        return self._errors.closed

    def send(self, data: bytes) -> int:
        return self._socket.send(data)

    def recv(self, size: int) -> bytes:
        try:
            data = self._socket.recv(size)
        except ConnectionError:  # it has ended, with some of what we sent unread
            data = b""
        self._ended = self._ended or not data
        return data

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def why_ended(self) -> str:
        """The last line that it wrote to stderr, with its exit code where it ended by itself; empty without both."""
        with self._lock:
            self._look(END_S / 4)
        ended = "" if self._code is None else f"exit code {self._code}"
        return f"{self._last_line} ({ended})" if self._last_line and ended else self._last_line or ended

    def _look(self, wait_s: float) -> None:
        if self._errors.closed:
            return
        with suppress(subprocess.TimeoutExpired):
            self._code = self._process.wait(wait_s)
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _MAX_ERRORS))
        text = self._errors.read(_MAX_ERRORS).decode(errors="replace")
        line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        self._last_line = "".join(one if one.isprintable() else "?" for one in line[:300])

    def close(self) -> None:
        """End the connection and its process group. Twice is once."""
        with self._lock:
            if self._errors.closed:
                return
            self._look(END_S / 4 if self._ended else 0)
            self._socket.close()
            self._errors.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
                return
