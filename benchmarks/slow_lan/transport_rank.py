"""One rank of the `transport` benchmark: runs every case with the others; rank 0 prints the time of each.

    python -m benchmarks.slow_lan.transport_rank '[{"method": "all_reduce", "bucket_bytes": 4194304, …}, …]'

A case is described by `transport.Case`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.slow_lan.network import sent_and_received

Group = Any
Start = Callable[[Tensor, Group], list[Any]]
"""Starts one exchange and returns the works to wait for. Dependent steps of an exchange wait for each other
themselves."""
STREAMS = 4


def all_reduce(bucket: Tensor, group: Group) -> list[Any]:
    return [dist.all_reduce(bucket, group=group, async_op=True)]


def reduce_scatter(bucket: Tensor, group: Group) -> list[Any]:
    mine = bucket.new_empty(bucket.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(mine, bucket, group=group)
    return [dist.all_gather_into_tensor(bucket, mine, group=group, async_op=True)]


def all_to_all(bucket: Tensor, group: Group) -> list[Any]:
    world = dist.get_world_size()
    theirs = torch.empty_like(bucket)
    dist.all_to_all_single(theirs, bucket, group=group)
    mine = theirs.view(world, -1).sum(0)
    return [dist.all_gather_into_tensor(bucket, mine, group=group, async_op=True)]


def all_to_all_twice(bucket: Tensor, group: Group) -> list[Any]:
    """The gather as an all-to-all too: each rank's part is sent directly to every other, not around a ring."""
    world = dist.get_world_size()
    theirs = torch.empty_like(bucket)
    dist.all_to_all_single(theirs, bucket, group=group)
    mine = theirs.view(world, -1).sum(0)
    return [dist.all_to_all_single(bucket, mine.repeat(world), group=group, async_op=True)]


def straight(bucket: Tensor, group: Group) -> list[Any]:
    """Send every part directly to its owner and back, with concurrent sends and receives."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = [(rank + step) % world for step in range(1, world)]
    parts = list(bucket.view(world, -1).unbind(0))
    theirs = {other: torch.empty_like(parts[rank]) for other in others}
    works = [dist.irecv(theirs[other], other, group=group) for other in others]
    works += [dist.isend(parts[other], other, group=group) for other in others]
    for work in works:
        work.wait()
    for other in others:
        parts[rank] += theirs[other]
    return [
        *(dist.irecv(parts[other], other, group=group) for other in others),
        *(dist.isend(parts[rank], other, group=group) for other in others),
    ]


def tree(bucket: Tensor, group: Group) -> list[Any]:
    dist.reduce(bucket, 0, group=group)
    return [dist.broadcast(bucket, 0, group=group, async_op=True)]


METHODS: dict[str, Start] = {
    method.__name__: method for method in (all_reduce, reduce_scatter, all_to_all, all_to_all_twice, straight, tree)
}


def main(argv: Sequence[str]) -> int:
    cases = json.loads(argv[0])
    dist.init_process_group("gloo")
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(STREAMS)]
    for number, case in enumerate(cases):
        most = torch.tensor(measured(case, groups), dtype=torch.float64)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        seconds, cpu_s, sent = most.tolist()
        _say("case", case=number, seconds=seconds, cpu_s=cpu_s, sent=sent)
    dist.barrier()
    _say("done")
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may ask for Python when it is gone


def measured(case: dict[str, Any], groups: Sequence[Group]) -> tuple[float, float, float]:
    """Wall-clock seconds, CPU seconds of this process, and bytes sent by its node, for all buckets of the case."""
    world, start = dist.get_world_size(), METHODS[case["method"]]
    count = case["bucket_bytes"] // 4 // world * world
    buckets = [torch.ones(count) for _ in range(case["buckets"])]
    chosen = groups[: case["streams"]]
    small = torch.ones(world * 256)
    for group in chosen:  # connections of a group are opened on first use
        _wait(start(small, group))
    dist.barrier()
    began, cpu, sent = time.perf_counter(), time.process_time(), _sent()
    if case["pipelined"]:
        _pipelined(start, buckets, chosen)
    else:
        for bucket in buckets:
            _wait(start(bucket, chosen[0]))
    dist.barrier()
    return time.perf_counter() - began, time.process_time() - cpu, _sent() - sent


def _pipelined(start: Start, buckets: Sequence[Tensor], groups: Sequence[Group]) -> None:
    """Start all buckets as early as possible; a group has its buckets in the same order on every rank.

    A method with two steps waits for the first one, so each group has its own thread here.
    """
    if start is all_reduce:
        _wait([work for n, bucket in enumerate(buckets) for work in start(bucket, groups[n % len(groups)])])
        return

    from concurrent.futures import ThreadPoolExecutor

    def stream(number: int) -> None:
        waiting: list[Any] = []
        for bucket in buckets[number :: len(groups)]:
            started = start(bucket, groups[number])
            _wait(waiting)
            waiting = started
        _wait(waiting)

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(stream, range(len(groups))))


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _sent() -> int:
    return sent_and_received(Path("/proc/self/net/dev").read_text())[0]


def _say(event: str, **fields: object) -> None:
    if dist.get_rank() == 0:
        print("@orch " + json.dumps({"event": event, **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
