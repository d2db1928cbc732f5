"""A processor of a given speed per node: a cgroup (v1 or v2) with a CPU quota."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.slow_lan.network import PREFIX, is_running, is_stale
from benchmarks.slow_lan.rates import quota

ROOT = Path("/sys/fs/cgroup")
WEIGHT_1, WEIGHT_2 = "200000", "10000"
"""CPU weight of the rig relative to everything else on this machine, in the units of cgroup v1 and v2, so that a node
gets its full quota."""


class Processors:
    """One cgroup per node under one for the rig. `close` kills remaining processes and removes them."""

    def __init__(self, cores: Sequence[float], root: Path = ROOT) -> None:
        self.cores = tuple(cores)
        self._root = root
        self._version_2 = not (root / "cpu" / "cpu.cfs_quota_us").exists()
        self._rig = self._home / f"{PREFIX}-{os.getpid()}"

    @property
    def _home(self) -> Path:
        return self._root if self._version_2 else self._root / "cpu"

    def open(self) -> None:
        remove_stale(self._home)
        self._rig.mkdir()
        if self._version_2:
            for folder in (self._home, self._rig):
                (folder / "cgroup.subtree_control").write_text("+cpu")
        if self._version_2:
            (self._rig / "cpu.weight").write_text(WEIGHT_2)
        else:
            (self._rig / "cpu.shares").write_text(WEIGHT_1)
        for number in range(len(self.cores)):
            self._folder(number).mkdir()

    def entrance(self, number: int) -> Path:
        """Path of the file to which a process of node `number` writes its id."""
        return self._folder(number) / "cgroup.procs"

    def limit(self, number: int) -> None:
        """Limit node `number` to its cores from now on."""
        how, folder = quota(self.cores[number]), self._folder(number)
        if self._version_2:
            (folder / "cpu.max").write_text(f"{how.quota_us} {how.period_us}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(how.period_us))
            (folder / "cpu.cfs_quota_us").write_text(str(how.quota_us))

    def free(self, number: int) -> None:
        folder = self._folder(number)
        if self._version_2:
            (folder / "cpu.max").write_text("max")
        else:
            (folder / "cpu.cfs_quota_us").write_text("-1")

    def close(self) -> None:
        _remove(self._rig)

    def _folder(self, number: int) -> Path:
        return self._rig / f"node{number}"


def remove_stale(home: Path) -> None:
    for folder in home.glob(f"{PREFIX}-*"):
        if is_stale(folder.name, is_running):
            _remove(folder)


def _remove(rig: Path) -> None:
    for folder in (*rig.glob("node*"), rig):
        if folder.is_dir():
            _empty(folder / "cgroup.procs")
            folder.rmdir()


def _empty(processes: Path, patience_s: float = 10.0) -> None:
    deadline = time.monotonic() + patience_s
    while (pids := processes.read_text().split()) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)  # the kernel takes a killed process out of its cgroup a little later
