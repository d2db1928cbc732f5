"""gloo's threads at the end of a process group: `destroy_process_group` returns when they are idle.

A thread of gloo needs the interpreter to free the tensors of a completed collective. Where the model in
DistributedDataParallel outlives the group, as in a `main()` that ends with `destroy_process_group()`, torch holds the
interpreter while it joins the threads, and may wait for ever (pytorch/pytorch#56297). Standard library alone.
"""

from __future__ import annotations

import functools
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any


def make_destroy_wait(distributed: ModuleType) -> None:
    """Have `destroy_process_group` wait: in this module, and in the package if it was imported before."""
    destroy = distributed.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **options: Any) -> None:
        destroy(*args, **options)
        wait_until_idle()

    for module in (distributed, sys.modules["torch.distributed"]):
        vars(module)["destroy_process_group"] = destroy_process_group


def wait_until_idle(longest_ms: int = 1000) -> None:
    """Let other threads have the interpreter until no thread of gloo runs."""
    for _ in range(longest_ms):
        time.sleep(0.001)  # a thread that waits for the interpreter sleeps: from here on it runs
        if not _one_runs():
            return


def _one_runs() -> bool:
    for path in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # it has ended
            if "(pt_gloo_runloop) R " in path.read_text("utf-8", "replace"):
                return True
    return False
