"""The run's data on this node, by the variables that name their folders, and the process that compares them with their
sums while the ranks train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

from contract import data_check
from contract.environment import DATA_DIR
from contract.events import DataDamaged

FIELDS = ("data", "file", "wrong", "offset", "size", "intact_at")


def leads_to_data(path: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a path as a rank wrote it, relative to the folder of the code, leads into the run's data."""
    if not path or "\0" in path:
        return False
    place = Path(os.path.realpath(path))
    return any(place.is_relative_to(os.path.realpath(folder)) for folder in _folders(environ))


def check_data(mib_s: float, report: Callable[[DataDamaged], None], environ: Mapping[str, str] = os.environ) -> None:
    """Start a process that reads the data again and again at this rate, and report each damaged file. It ends with the
    ranks, and with this process; whatever fails in it, the run continues.

    A process and not a thread: it waits for whatever else the machine does, and must not hold a lock of this one.
    """
    folders = [one for one in _folders(environ) if (Path(one).parent / data_check.SUMS / Path(one).name).is_file()]
    if mib_s <= 0 or not folders:
        return
    with suppress(OSError, RuntimeError):  # out of processes, threads or memory
        process = subprocess.Popen(
            [sys.executable, "-I", data_check.__file__, "watch", str(mib_s), *folders],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout  # noqa: S101  # a pipe was asked for
        Thread(target=_read, args=(process.stdout, report), daemon=True, name="data").start()


def _read(lines: IO[str], report: Callable[[DataDamaged], None]) -> None:
    with lines:
        for line in lines:
            values = json.loads(line)
            report(DataDamaged(**{name: values[name] for name in FIELDS}))


def _folders(environ: Mapping[str, str]) -> list[str]:
    return sorted({environ[name] for name in environ if name == DATA_DIR or name.startswith(f"{DATA_DIR}_")})
