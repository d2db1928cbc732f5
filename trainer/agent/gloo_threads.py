"""gloo's threads at the end of a process group and of Python, which wait until they are idle.

A thread of gloo needs the interpreter to free the tensors of a completed collective. Where the model in
DistributedDataParallel outlives the group, as in a `main()` that ends with `destroy_process_group()`, torch holds the
interpreter while it joins the threads, and may wait for ever (pytorch/pytorch#56297). A thread that needs Python after
its end aborts the process (pytorch/pytorch#179291). Standard library alone.
"""

from __future__ import annotations

import atexit
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
    atexit.register(wait_until_idle)


def wait_until_idle(longest_s: float = 1.0) -> None:
    """Let other threads have the interpreter until no thread of gloo runs, at three looks in a row."""
    until, idle = time.monotonic() + longest_s, 0
    while idle < 3 and time.monotonic() < until:
        time.sleep(0.001)  # one that waits for the interpreter, or for another thread, wakes meanwhile
        idle = 0 if _one_runs() else idle + 1


def _one_runs() -> bool:
    with suppress(OSError):  # no descriptor is left
        for path in Path("/proc/self/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                if path.read_text("utf-8", "replace").partition("(pt_gloo_runloop) ")[2][:1] in ("R", "D"):
                    return True
    return False
