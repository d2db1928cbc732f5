"""View of a node from inside a container of the training image: one line of JSON from a short program run in it.

It does not import torch, which takes seconds on five machines and half a minute where they share two cores: versions
come from the packages' own records, and what torch would make of the processor from its flags.
"""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from orchestrator.nodes.interface import Completed
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.host import InsideFacts

_PROGRAM = r"""
import json, os, platform, resource
from importlib.metadata import distributions

def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""

def whole(text):
    return int(text) if text.isdigit() else None

def cpus():
    quota, _, period = read("/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        quota, period = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None

def memory():
    limit = whole(read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return limit // 2**20 if limit is not None and limit < 2**60 else None

def capability():
    lines = (line.partition(":") for line in read("/proc/cpuinfo").splitlines())
    flags = next((set(value.split()) for key, _, value in lines if key.strip() == "flags"), None)
    if flags is None:
        return ""
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"} <= flags:
        return "AVX512"
    return "AVX2" if {"avx2", "fma"} <= flags else "DEFAULT"

held = {(d.metadata["Name"] or "").lower(): d.version for d in distributions()}
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "torch": held.get("torch", ""),
    "nccl": next((version for name, version in held.items() if name.startswith("nvidia-nccl")), ""),
    "python": platform.python_version(), "cpu_capability": capability(), "cpus": cpus(), "memory_mib": memory(),
    "shm_mib": shm.f_blocks * shm.f_frsize // 2**20,
    "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "user": os.getuid(),
}))
"""
PROBE = ("python3", "-c", _PROGRAM)
_ANSWER = TypeAdapter(InsideFacts)


def parse(completed: Completed) -> InsideFacts:
    """Its answer; `CommandFailedError` where there is none, with the last line that it wrote."""
    text = completed.check("looking into a container of the training image")
    try:
        last = text.strip().rsplit("\n", 1)[-1]
        InsideFacts(**json.loads(last))  # refuses unknown keys, which validation would pass over
        return _ANSWER.validate_json(last, strict=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise CommandFailedError(
            f"a container of the training image answered something else: {type(error).__name__}", node=completed.node
        ) from error
