"""Process group: how a rank joins the others, and leaves them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.agent import heartbeat
from trainer.config import RankInfo
from trainer.engine.group import BOTH, Group
from trainer.errors import ConfigurationError, TrainerError


@contextmanager
def join(place: RankInfo, device: torch.device, backend: str) -> Iterator[Group]:
    """Meet the other ranks, and part from them in order: torchrun waits 300 s for one that just vanishes."""
    if place.world_size == 1:
        yield Group(place=place, backend="none", device=torch.device("cpu"))
        return
    if backend == "nccl" and device.type != "cuda":
        raise ConfigurationError(f"{place.name}: backend nccl, but torch sees no GPU here; use --backend gloo")
    timeout = timedelta(seconds=place.pg_timeout_s)
    heartbeat.part("join")
    store: Store | None = None
    try:
        store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))
        store.set_timeout(timeout)
        store.set(_device_of(place.rank), f"{device.type} {place.label}")
        chosen, without_gpu = _choose_backend(place, backend, store)
        # No device is bound to it (device_id): torch would then split each further group from this one (ncclCommSplit),
        # and wait for all ranks to enter that, also for those who are left out of the run.
        dist.init_process_group(
            BOTH if chosen == "nccl" else chosen,
            store=PrefixStore("trainer", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
        where = device if chosen == "nccl" else torch.device("cpu")
        group = Group(
            place=place, backend=chosen, device=where, store=PrefixStore("trainer", store), without_gpu=without_gpu
        )
        present = int(group.all_reduce_sum([1.0])[0])
        group = group.aware_of_nodes()
        group.connect()
    except (RuntimeError, ValueError) as error:
        raise TrainerError(
            f"{place.name} could not join the others at {place.master or 'MASTER_ADDR:MASTER_PORT'}"
            f" within {place.pg_timeout_s} s: {error}{_missing(place, store)}"
        ) from error
    if present != place.world_size:
        raise TrainerError(f"{place.name}: the first all-reduce counted {present} ranks, not {place.world_size}")
    yield group
    # Only after a good end: with a rank gone, destroying can wait for it; a failed process just ends.
    group.barrier()
    dist.destroy_process_group()


@contextmanager
def gathered(place: RankInfo) -> Iterator[Group]:
    """All ranks by gloo, also where the program has not met the others so far. To be called by all of them."""
    if place.world_size == 1:
        yield Group(place=place, backend="none", device=torch.device("cpu"))
        return
    timeout = timedelta(seconds=place.pg_timeout_s)
    everyone = Group(place=place, backend="gloo", device=torch.device("cpu"))
    if dist.is_initialized():
        yield everyone.subgroup(range(place.world_size)) or everyone
        return
    store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))
    # Names of its own in the store: the program's own process group must not read them.
    dist.init_process_group(
        "gloo",
        store=PrefixStore(f"gathered/{next(_meetings)}", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
    try:
        yield everyone
    finally:
        dist.destroy_process_group()


_meetings = count()
"""Numbers of the prefixes in the store, one for each process group."""


def leave(place: RankInfo, code: int) -> int:
    """Return the exit code of a process alone; end a process that is one of several ranks at once.

    Python's own end would wait for ranks that no longer answer after a failure. After a success gloo's threads
    may still ask for Python when it is gone: one run in eight of three ranks ended in an abort (`terminate called
    without an active exception`) after its last event, which torchrun takes for a failure.
    """
    if place.world_size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def expected_backend(place: RankInfo, device: torch.device, backend: str) -> str:
    """The backend as far as this rank can tell before it has met the others."""
    if place.world_size == 1:
        return "none"
    return "gloo" if backend == "auto" and device.type != "cuda" else backend


def _missing(place: RankInfo, store: Store | None) -> str:
    """The ranks that have not come to the store, as the end of a sentence; empty where that is not known."""
    with suppress(RuntimeError):
        if missing := [str(rank) for rank in range(place.world_size) if store and not store.check([_device_of(rank)])]:
            return f"; it waited for rank {', '.join(missing)}"
    return ""


def _device_of(rank: int) -> str:
    return f"device/{rank}"


def _choose_backend(place: RankInfo, backend: str, store: Store) -> tuple[str, tuple[str, ...]]:
    """One backend serves all ranks: nccl only if every one of them has a GPU. With it those that have none, where some
    have one."""
    if backend != "auto":
        return backend, ()
    votes = [store.get(_device_of(rank)).decode(errors="replace").split(" ", 1) for rank in range(place.world_size)]
    without = tuple(label for kind, label in votes if kind != "cuda")
    return "gloo" if without else "nccl", without if len(without) < len(votes) else ()
