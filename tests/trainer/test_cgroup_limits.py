"""Limits of a container, from copies of what cgroup v1 and v2 show."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer import limits


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


V2_IN_CONTAINER = {
    "proc/self/cgroup": "0::/",
    "sys/fs/cgroup/cpu.max": "200000 100000",
    "sys/fs/cgroup/memory.max": "4294967296",
    "sys/fs/cgroup/memory.current": "1000000000",
    "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 400000000",
    "sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1",
}
V1_HOST_PATH = {
    "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/cpuacct.usage": "2500000000",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000000",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 400000000",
}


@pytest.mark.parametrize(("files", "cpus"), [(V2_IN_CONTAINER, 2.0), (V1_HOST_PATH, 1.5)])
def test_both_cgroup_versions(tmp_path: Path, files: dict[str, str], cpus: float) -> None:
    root = lay(tmp_path, files)
    assert limits.cpu_quota(root) == cpus
    assert limits.cpu_seconds(root) == 2.5
    assert limits.memory_limit(root) == 4294967296
    assert limits.memory_used(root) == 600000000


def test_the_tightest_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/run",
            "sys/fs/cgroup/slice/run/cpu.max": "max 100000",
            "sys/fs/cgroup/slice/cpu.max": "300000 100000",
        },
    )
    assert limits.cpu_quota(root) == 3.0


def test_no_limits(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu:/\n5:memory:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert (limits.cpu_quota(root), limits.memory_limit(root)) == (None, None)
    assert limits.cpu_quota(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("quota", "affinity", "threads"), [("200000", 8, 2), ("150000", 8, 1), ("50000", 8, 1), ("800000", 4, 4)]
)
def test_threads_fit_quota_and_affinity(tmp_path: Path, quota: str, affinity: int, threads: int) -> None:
    root = lay(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{quota} 100000"})
    assert limits.usable_threads(root, affinity) == threads
    assert limits.usable_threads(tmp_path / "nothing", affinity) == affinity
