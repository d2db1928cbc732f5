"""The folder of one container that is a process: what its supervisor writes, and every other program reads.

Nothing but the standard library, so that a supervisor is up at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MARK = "ORCH_PROCESS"
"""Every process of a container inherits this variable with the container's id. torchrun starts each rank in a session
of its own, so neither a process group nor a session holds them all."""
POLL_S = 0.05
KILL_TIMEOUT_S = 20.0


def processes_folder() -> Path:
    """Folder with the state of this computer's process nodes, one subfolder each."""
    from platformdirs import user_state_path  # which the supervisor does not need

    return user_state_path("orch") / "processes"


@dataclass(frozen=True)
class ProcessFiles:
    """Folder of one container, named by its id."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def spec(self) -> Path:
        """The spec as it was given, and its name of today."""
        return self.folder / "spec.json"

    @property
    def launch(self) -> Path:
        """Input of the supervisor: argv, environment, folder, restarts."""
        return self.folder / "launch.json"

    @property
    def started(self) -> Path:
        return self.folder / "started.json"

    @property
    def exit(self) -> Path:
        return self.folder / "exit.json"

    @property
    def log(self) -> Path:
        """A JSON object for each line written: time, stream, text."""
        return self.folder / "log.jsonl"

    @property
    def stopping(self) -> Path:
        """Marks that the process is not restarted when it ends."""
        return self.folder / "stopping"

    @property
    def lock(self) -> Path:
        """Lock held while the supervisor runs; a process id could be reused by another process."""
        return self.folder / "lock"

    def is_running(self) -> bool:
        """Return whether its supervisor lives."""
        return not self.wait_end(0.0)

    def wait_end(self, timeout_s: float | None) -> bool:
        """Wait until its supervisor has ended or has never started; False where it still lives after the time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self.lock.open() as lock:
                while not _free(lock, wait=deadline is None):
                    if deadline is not None and time.monotonic() >= deadline:
                        return False
                    time.sleep(POLL_S)
        except FileNotFoundError:
            return True
        return True

    def members(self) -> Iterator[int]:
        """Process ids of all that the container's first process has started and that have not ended."""
        mark = f"{MARK}={self.id}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it has just ended, or is another user's
                    if mark in (entry / "environ").read_bytes():
                        yield int(entry.name)

    def kill(self) -> None:
        """End all its processes, also those that are just being started."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (members := list(self.members())) and time.monotonic() < deadline:
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S / 5)


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Replace the file atomically: a reader sees the old or the new content."""
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    aside.replace(file)


def read_json(file: Path) -> dict[str, Any]:
    """Empty where the file is not there."""
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return data


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds, all nine digits: it sorts as text."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09d}Z"


def _free(lock: IO[str], *, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH if wait else fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True
