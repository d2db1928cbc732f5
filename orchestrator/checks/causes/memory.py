"""Causes: memory of a node, and the shared memory of its containers."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="memory.shm",
        what="the shared memory of the container on {node} is full: DataLoader workers hand their batches over there",
        todo=(
            "more of it in inventory.yaml: limits: {{shm: 4g}} for {node}, then orch resume {run}",
            "or fewer workers: --workers 0, num_workers=0",
        ),
        page="resources.shm",
    ),
    Advice(
        id="memory.worker_killed",
        what="a DataLoader worker of rank {rank} on {node} was killed, most likely as the machine ran out of memory",
        todo=(
            "fewer workers or smaller batches: --workers 1, --micro-batch-size",
            "see what the kernel says: journalctl -k -g 'Out of memory' on {node}",
        ),
        page="resources.memory",
    ),
    Advice(
        id="memory.one_sample",
        what="not even one sample fits into the memory of rank {rank} on {node}: a smaller batch does not help",
        todo=(
            "--gradient-checkpointing, shorter samples, a lower precision or a smaller model",
            "or without {node}, if it has less memory than the others: orch resume {run} --nodes …",
        ),
        page="resources.memory",
    ),
    Advice(
        id="memory.host",
        what="rank {rank} asked for more memory than {node} has",
        todo=(
            "a smaller batch: --micro-batch-size, --batch-size",
            "more memory for the container: limits: in inventory.yaml",
        ),
        page="resources.memory",
    ),
    Advice(
        id="memory.limit",
        what="the container on {node} reached its memory limit, and the kernel killed in it",
        todo=(
            "a smaller batch or fewer workers: --micro-batch-size, --workers",
            "what is free there: orch doctor --nodes {node}; a smaller share of the samples for it: --shares auto",
        ),
        page="resources.memory",
    ),
    Advice(
        id="memory.kernel",
        what="{node} ran out of memory, and its kernel killed a process ({process}) to continue",
        todo=(
            "a smaller batch or fewer workers: --micro-batch-size, --workers",
            "end what else holds memory on {node}",
        ),
        page="resources.memory",
    ),
    Advice(
        id="memory.killed",
        what="rank {rank} on {node} was killed (SIGKILL): by the kernel when memory ran out, by a watchdog, or by hand",
        todo=(
            "was it memory? journalctl -k -g 'Out of memory' on {node}; then --micro-batch-size or --workers smaller",
            "continue from the last checkpoint: orch resume {run}",
        ),
        page="resources.memory",
    ),
)
