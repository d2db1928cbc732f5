"""Resource limits of this process: a container may use less than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def usable_threads(root: Path = ROOT, affinity: int | None = None) -> int:
    """CPUs by affinity, at most the cgroup's quota: more threads are throttled, not faster."""
    cpus = affinity or len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return max(1, min(cpus, int(quota)) if quota else cpus)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the cgroup grants (2.0 for `docker run --cpus 2`), None without a limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        maximum, quota, period = (_read(folder / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        if maximum and not maximum.startswith("max"):
            granted, per = maximum.split()
            quotas.append(int(granted) / int(per))
        elif quota and period and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cpu_seconds(root: Path = ROOT) -> float | None:
    """CPU time that the cgroup has used so far."""
    for folder in _folders(root, "cpuacct"):
        for line in _read(folder / "cpu.stat").splitlines():
            if line.startswith("usage_usec"):
                return int(line.split()[1]) / 1e6
        if used := _read(folder / "cpuacct.usage"):
            return int(used) / 1e9
    return None


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that the cgroup may hold, None without a limit."""
    limits = []
    for folder in _folders(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text and text != "max" and int(text) < 1 << 60:  # cgroup v1 writes a huge number for "none"
            limits.append(int(text))
    return min(limits, default=None)


def memory_used(root: Path = ROOT) -> int | None:
    """Bytes that the cgroup holds, without the file cache that the kernel drops at need."""
    for folder in _folders(root, "memory"):
        text = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if text:
            stat = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines())
            return max(0, int(text) - int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup for one controller, v1 and v2, from its own up to the mount's root, which is its
    own group in a container without a cgroup namespace: there the path in /proc is the host's and not visible."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        if controllers and not mount.is_dir():
            mount = root / "sys/fs/cgroup" / controller
        folder = mount / path.lstrip("/")
        while folder != mount and mount in folder.parents:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
