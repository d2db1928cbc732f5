"""Processes of this machine, from the kernel: an image may have no package for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02
KILL_S = 15.0
"""Time for killed processes to end; one that a driver blocks ends only with its container."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process; its start time tells it from a later one with the same number."""

    pid: int
    started: str
    parent: int
    state: str = ""
    """The kernel's letter: R runs, S sleeps, T is stopped, D waits for a disk or a driver."""
    cpu_s: float = 0.0
    """CPU time so far, with that of its children that have ended."""

    def is_there(self) -> bool:
        """Return whether it exists. A child of this process that has ended is collected first."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        now = _read(self.pid)
        return now is not None and now.started == self.started

    def kill(self) -> None:
        """Kill it, if it exists."""
        if (now := _read(self.pid)) and now.started == self.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ChildProcess:
    """A child of this process that was forked, not started as a program: as much of `subprocess.Popen` as is used."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Exit code; negative: the signal that ended it."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # collected by `Process.is_there`, after a kill
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. subprocess.TimeoutExpired: it has not come after so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def children_of(pid: int) -> list[Process]:
    """The processes that this one has started."""
    return [process for process in all_processes() if process.parent == pid]


def descendants(pid: int) -> list[Process]:
    """All processes below this one."""
    return below(pid, all_processes())


def below(pid: int, processes: Iterable[Process]) -> list[Process]:
    """Those of these processes that are below this one."""
    by_parent: dict[int, list[Process]] = {}
    for process in processes:
        by_parent.setdefault(process.parent, []).append(process)
    found = list(by_parent.get(pid, ()))
    for process in found:  # it grows meanwhile
        found += by_parent.get(process.pid, ())
    return found


def listed_below(pid: int) -> Iterator[int]:
    """Numbers of the processes below this one, from the top, as the kernel lists them: without a look at all processes
    of the machine. One that has just started or lost its parent may be missing."""
    found = [pid]
    for parent in found:  # it grows meanwhile
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(OSError):
                    children = [int(word) for word in (thread / "children").read_text().split()]
                    yield from children
                    found += children


def left_after(processes: Sequence[Process], timeout_s: float = 0.0) -> list[Process]:
    """Those that have not ended within this time."""
    deadline = time.monotonic() + timeout_s
    while (left := [process for process in processes if process.is_there()]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def kill_all(found: Callable[[], Sequence[Process]]) -> None:
    """Kill what `found` finds until it finds none. TimeoutError: a process does not die; it hangs in a driver or on a
    disk."""
    deadline = time.monotonic() + KILL_S
    while some := found():
        for process in some:
            process.kill()
        left_after(some, 1.0)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {', '.join(str(process.pid) for process in some)} do not die")


def exists(pid: int) -> bool:
    return _read(pid) is not None


def all_processes() -> list[Process]:
    """All processes of the container, or of the machine outside one."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [process for process in map(_read, pids) if process]


def io_bytes(pid: int) -> int:
    """Bytes that a process has read and written so far, in files and on connections (proc(5))."""
    rows = dict(line.split(": ", 1) for line in proc_text(pid, "io").splitlines() if ": " in line)
    return sum(int(rows[name]) for name in ("rchar", "wchar") if rows.get(name, "").isdecimal())


def proc_text(pid: int, name: str) -> str:
    """The text of a file below /proc; empty: it cannot be read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _read(pid: int) -> Process | None:
    """The process with this number, None if there is none (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()  # the name before it may hold anything
    cpu_s = sum(map(int, words[11:15])) / _TICKS
    return Process(pid=pid, started=words[19], parent=int(words[1]), state=words[0], cpu_s=cpu_s)
