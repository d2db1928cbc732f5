"""Training scripts of a few lines that hang at the line marked `hangs`, each in its own way.

`alarm_cases.script` makes one file of these and the others, which imports torch alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from benchmarks.alarm_training import (
    FOREVER_S,
    RANK,
    Training,
    for_seconds,
    mark,
)


def hang_sleep() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        time.sleep(FOREVER_S)  # hangs
    training.dist.barrier()


def hang_stopped() -> None:
    training = Training()
    for number in for_seconds(FOREVER_S):
        if RANK == 1 and number == 20:
            mark("hangs")
            os.kill(os.getpid(), signal.SIGSTOP)  # hangs
        training.step()


def hang_skipped_collective() -> None:
    training = Training().steps()
    mark("hangs")
    if RANK != 1:
        training.dist.barrier()  # hangs
    training.dist.all_reduce(training.torch.ones(1))
    if RANK == 1:
        training.dist.broadcast(training.torch.ones(1), 1)


def hang_two_groups() -> None:
    training = Training()
    other = training.dist.new_group()
    training.steps()
    mark("hangs")
    training.dist.all_reduce(training.torch.ones(1), group=None if RANK else other)  # hangs


def hang_two_collectives() -> None:
    training = Training().steps()
    mark("hangs")
    if RANK == 1:
        training.dist.broadcast(training.torch.ones(1), 0)
    else:
        training.dist.all_gather([training.torch.ones(1) for _ in range(training.dist.get_world_size())],
                                 training.torch.ones(1))  # fmt: skip
    training.dist.barrier()


def hang_cut_link() -> None:
    training = Training().steps()
    mark("trains")
    while True:
        training.step()  # hangs
        time.sleep(0.1)


def hang_endless_loop() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        while True:
            len(str(RANK))  # hangs
    training.dist.barrier()


def hang_share() -> None:
    """The kernel holds the process (state D), as for a share whose server is gone."""
    training = Training().steps()
    if RANK == 1:
        os.mkfifo("share")
        mark("hangs")
        # The kernel holds the parent until the child has opened the pipe, which never happens.
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, "share", os.O_RDONLY, 0)])
    training.dist.barrier()


def hang_read() -> None:
    training = Training().steps()
    if RANK == 1:
        os.mkfifo("data")
        mark("hangs")
        Path("data").read_bytes()  # hangs
    training.dist.barrier()


def hang_unnoticed_exit() -> None:
    """A process that the rank leaves behind keeps its connections open."""
    training = Training().steps()
    if RANK == 1:
        if not os.fork():
            time.sleep(FOREVER_S)
        mark("hangs")
        os._exit(0)
    training.dist.barrier()  # hangs


def hang_native_code() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        [sum(range(number)) for number in (10**8, 10**13)]  # hangs
    training.dist.barrier()


def hang_never_joins() -> None:
    import torch.distributed as dist

    mark("begins")
    mark("hangs")
    if RANK == 1:
        time.sleep(FOREVER_S)  # hangs
    dist.init_process_group("gloo")


def hang_lock() -> None:
    training = Training().steps()
    if RANK == 1:
        lock = threading.Lock()
        lock.acquire()
        mark("hangs")
        lock.acquire()  # hangs
    training.dist.barrier()


def hang_all_idle() -> None:
    Training().steps()
    os.mkfifo("data")
    mark("hangs")
    Path("data").read_bytes()  # hangs
