"""Lock that lets one supervisor at most follow a run on a controller. The lock is the kernel's: it ends with the
process."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import IO

from orchestrator.nodes.state_files import open_private
from orchestrator.specs.errors import ConflictError
from orchestrator.state.facts import SupervisorSought
from orchestrator.store.run_record import RunRecord

LOCK = "supervisor.lock"
LOOK_EVERY_S = 0.5


@contextmanager
def only_supervisor(
    record: RunRecord, *, tries: int = 1, rest: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock that makes this process the supervisor of the run. ConflictError: another one does, still after
    `tries` looks."""
    with TextIOWrapper(open_private(record.folder / LOCK), encoding="ascii") as lock:
        while not _lock(lock, fcntl.LOCK_EX):
            tries -= 1
            if tries <= 0:
                lock.seek(0)
                process = lock.read().strip() or "?"
                raise ConflictError(
                    f"run {record.run_id} is supervised already, by process {process} of this computer",
                    hint=f"orch logs -f {record.run_id}",
                )
            rest(LOOK_EVERY_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def supervisor_of(record: RunRecord) -> int | None:
    """The process that supervises the run on this controller; None: there is none."""
    with suppress(FileNotFoundError), (record.folder / LOCK).open("r", encoding="ascii") as lock:
        if not _lock(lock, fcntl.LOCK_SH):
            written = lock.read().strip()
            return int(written) if written.isdecimal() else 0
    return None


def supervisor_sought(record: RunRecord, seen: float) -> SupervisorSought:
    """The fact that a process of this computer supervises the run, or that none does. The home folder may be shared:
    nothing is known of runs of another computer."""
    run = record.journal.run
    is_of_here = run is not None and run.host == platform.node()
    absent = False if is_of_here else None
    return SupervisorSought(seen=seen, found=absent if supervisor_of(record) is None else True)


def _lock(file: IO[str], kind: int) -> bool:
    """False: another process holds the lock."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
