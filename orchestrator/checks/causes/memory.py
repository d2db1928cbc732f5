"""Causes: memory of a node, and the shared memory of its containers."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="memory.shm",
        kind="configuration",
        what="the shared memory of the container on {node} is full: DataLoader workers hand their batches over there",
        todo=(
            "more of it in inventory.yaml: limits: {{shm: 4g}} for {node}, then orch resume {run}",
            "or fewer workers: --workers 0, num_workers=0",
        ),
        signs=(
            r"insufficient shared memory \(shm\)",
            r"unable to (?:open|write to|allocate|resize|mmap).*(?:shared memory|</torch_|/torch_\d+)",
            r"No space left on device.*(?:/dev/shm|torch_\d+|psm_)",
            r"(?:/dev/shm|torch_\d+|psm_).*No space left on device",
            r"is killed by signal: Bus error",
        ),
        page="room.shm",
    ),
    Rule(
        id="memory.worker_killed",
        kind="infrastructure",
        what="a DataLoader worker of rank {rank} on {node} was killed, most likely as the machine ran out of memory",
        todo=(
            "fewer workers or smaller batches: --workers 1, --micro-batch-size",
            "see what the kernel says: journalctl -k -g 'Out of memory' on {node}",
        ),
        signs=(
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
            r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        ),
        page="room.memory",
    ),
    Rule(
        id="memory.one_sample",
        kind="user",
        what="not even one sample fits into the memory of rank {rank} on {node}: a smaller batch does not help",
        todo=(
            "--gradient-checkpointing, shorter samples, a lower precision or a smaller model",
            "or without {node}, if it has less memory than the others: orch resume {run} --nodes …",
        ),
        signs=(r"not even one sample fits into memory",),
        page="room.memory",
    ),
    Rule(
        id="memory.host",
        kind="user",
        what="rank {rank} asked for more memory than {node} has",
        todo=(
            "a smaller batch: --micro-batch-size, --batch-size",
            "more memory for the container: limits: in inventory.yaml",
        ),
        signs=(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"^MemoryError|numpy.*_ArrayMemoryError",
            r"std::bad_alloc",
            r"\[Errno 12\] Cannot allocate memory",
        ),
        page="room.memory",
    ),
    Rule(
        id="memory.limit",
        kind="infrastructure",
        what="the container on {node} reached its memory limit, and the kernel killed in it",
        todo=(
            "a smaller batch or fewer workers: --micro-batch-size, --workers",
            "what is free there: orch doctor --node {node}; a smaller share of the samples for it: --shares auto",
        ),
        signs=(r"Memory cgroup out of memory: Killed process",),
        page="room.memory",
    ),
    Rule(
        id="memory.kernel",
        kind="infrastructure",
        what="{node} ran out of memory, and its kernel killed a process ({process}) to go on",
        todo=(
            "a smaller batch or fewer workers: --micro-batch-size, --workers",
            "end what else holds memory on {node}",
        ),
        signs=(r"Out of memory: Killed process \d+ \((?P<process>[^)]*)\)",),
        page="room.memory",
    ),
    Rule(
        id="memory.killed",
        kind="infrastructure",
        what="rank {rank} on {node} was killed (SIGKILL): by the kernel for want of memory, by a watchdog, or by hand",
        todo=(
            "was it memory? journalctl -k -g 'Out of memory' on {node}; then --micro-batch-size or --workers smaller",
            "go on from the last checkpoint: orch resume {run}",
        ),
        exit_codes=(-9, 137),
        page="room.memory",
    ),
)
