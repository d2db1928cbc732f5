"""Status of a rank, written every second by a thread of its process: its work, its collectives, its current line.

No line of the user's code is needed: torch records collectives by itself, and a hook of torch counts optimizer steps.
One function of torch is replaced (`gloo_threads`). Whatever fails here ends the status, never the rank. A start of
Python that finds no torch starts no thread. Standard library alone: `at_start` loads it before the user's program.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

from trainer.agent import gloo_threads

FOLDER = "ORCH_BEATS"
"""Environment variable with the path of the folder; in memory, as a slow disk must not look like a slow rank."""
SUFFIX = ".status"
EVERY_S = 1.0
OPTIMIZER, DISTRIBUTED = "torch.optim.optimizer", "torch.distributed.distributed_c10d"
LIBRARIES = ("horovod", "ray", "mpi4py", "hivemind")
LOOKS_AT = (30, 1000, 10_000)
"""Optimizer steps after the fifth at which the recorded collectives are read, with their sizes: that holds the
interpreter for 1 ms at the first time, and up to 40 ms."""
FIRST_STEP = 5
_NAME = "rank-status"
_C10D = "distributed_c10d.py"
_NOT_THE_USERS = (f"{Path(os.__file__).parent}/", "/site-packages/", "/dist-packages/", f"{Path(__file__).parent}/")
_WIDTH = 1024
_MOST_GROUPS = 64
_LONGEST = 160


class Activity(Protocol):
    """The work that a program notes itself."""

    step: int
    done: int
    part: str

    def exchange(self) -> str: ...


def install(environ: Mapping[str, str]) -> None:
    """Start the status once the program imports torch, if an agent reads it."""
    if environ.get(FOLDER):
        sys.meta_path.insert(0, _AfterTorch(Path(environ[FOLDER])))


def begin(environ: Mapping[str, str], activity: Activity | None = None) -> None:
    """Write the status with this activity, if an agent reads it; started now where `install` was not called."""
    if not environ.get(FOLDER):
        return
    for thread in threading.enumerate():  # of another instance of this module, which `at_start` has loaded
        if thread.name == _NAME:
            thread.activity = activity  # type: ignore[attr-defined]  # it is a RankStatus
            return
    counter = _Counter()
    try:
        if optimizer := sys.modules.get(OPTIMIZER):
            counter.count(optimizer)
        if distributed := sys.modules.get(DISTRIBUTED):
            gloo_threads.make_destroy_wait(distributed)
        RankStatus(Path(environ[FOLDER]), counter, activity).start()
    except (OSError, RuntimeError) as error:  # no space, descriptor or thread is left
        _complain(Path(environ[FOLDER]), error)


class _Counter:
    """Number of optimizer steps of this process."""

    def __init__(self) -> None:
        self.steps = 0
        self.parameter: int | None = None
        """Elements of the largest parameter that the first step changed; None: there was no step."""

    def count(self, optimizer: ModuleType) -> None:
        """Register the hook; in the thread that imports torch, as another one could do so during a step."""
        import torch

        def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if not torch.compiler.is_compiling():
                stepped_before_2_3(optimizer)

        def stepped_before_2_3(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if not self.steps:
                with contextlib.suppress(Exception):  # an uninitialized parameter has no size
                    every = (one for group in optimizer.param_groups for one in group["params"])
                    self.parameter = max((one.numel() for one in every), default=None)
            self.steps += 1

        if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
            stepped = stepped_before_2_3
        optimizer.register_optimizer_step_post_hook(stepped)


class _AfterTorch:
    """A finder that finds nothing itself, and acts after two modules of torch were imported."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._counter = folder, _Counter()
        self._actions: dict[str, Callable[[ModuleType], None]] = {
            OPTIMIZER: self._counter.count,
            DISTRIBUTED: self._start_status,
        }

    def _start_status(self, distributed: ModuleType) -> None:
        gloo_threads.make_destroy_wait(distributed)
        RankStatus(self._folder, self._counter).start()

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name not in self._actions:
            return None
        action = self._actions.pop(name)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            _run_after(spec.loader, action, self._folder)
        return spec


def _run_after(loader: Any, action: Callable[[ModuleType], None], folder: Path) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            action(module)
        except Exception as error:
            _complain(folder, error)

    loader.exec_module = exec_module


class RankStatus(threading.Thread):
    """The thread that writes the status of this process."""

    def __init__(self, folder: Path, counter: _Counter, activity: Activity | None = None) -> None:
        super().__init__(daemon=True, name=_NAME)
        self.activity = activity
        self._folder, self._counter = folder, counter
        self._main = threading.main_thread().ident
        self._place: tuple[int, int] | None = None
        """Rank and number of ranks, once they are known."""
        self._joined = False
        self._largest: int | None = None
        self._looks, self._looked_at = list(LOOKS_AT), 0
        self._process = os.getpid()
        self._path = folder / f"{self._process}{SUFFIX}"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        atexit.register(self._last)

    def run(self) -> None:
        try:
            while True:
                self._write()
                time.sleep(EVERY_S)
        except Exception as error:  # a rank without a status must not be taken for a frozen one
            self._path.unlink(missing_ok=True)
            _complain(self._folder, error)

    def _write(self) -> None:
        os.pwrite(self._descriptor, (json.dumps(self.status()) + "\n").ljust(_WIDTH).encode(), 0)

    def _last(self) -> None:
        """The counts at the end of the program; a process that it has forked has its own."""
        with contextlib.suppress(Exception):
            if os.getpid() == self._process:
                self._write()

    def status(self) -> dict[str, Any]:
        """The record of this moment. `time.monotonic` is the same clock in all processes of a machine."""
        torch = sys.modules.get(DISTRIBUTED)
        groups, in_group = _groups(torch) if torch else ({}, False)
        self._joined |= in_group
        rank, world = self._rank(torch if in_group else None)
        self._look(in_group)
        return {
            "process": os.getpid(),
            "parent": os.getppid(),
            "at": round(time.monotonic(), 3),
            "rank": rank,
            "local_rank": os.environ.get("LOCAL_RANK", ""),
            "world": world,
            "optimizer_steps": self._counter.steps,
            "groups": groups,
            "in_group": in_group,
            "joined": self._joined,
            "store_port": os.environ.get("MASTER_PORT", ""),
            "gpu": bool(getattr(sys.modules.get("torch.cuda"), "_initialized", False)),
            "libraries": [name for name in LIBRARIES if name in sys.modules],
            "parameter": self._counter.parameter,
            "largest": self._largest,
            "looked_at": self._looked_at,
            **_position(sys._current_frames().get(self._main or 0)),
            **_noted(self.activity),
        }

    def _rank(self, joined: Any) -> tuple[int | None, int]:
        """Rank and number of ranks: of the environment, otherwise of the process group, asked once."""
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if rank.isdigit():
            return int(rank), int(world) if world.isdigit() else 1
        if joined and not self._place:
            self._place = joined.get_rank(), joined.get_world_size()
        return self._place or (None, 1)

    def _look(self, in_group: bool) -> None:
        """Read the sizes of the recorded collectives, at a few steps alone."""
        if in_group and self._looks and self._counter.steps - FIRST_STEP >= self._looks[0]:
            self._looked_at = self._looks.pop(0)
            sizes = [size for size in (self._largest, _largest(list(_recorded()))) if size is not None]
            self._largest = max(sizes, default=None)


def _complain(folder: Path, error: Exception) -> None:
    if folder.exists():  # otherwise the agent has ended, and with it the rank: this is a process that it left behind
        print(f"this rank reports no status any more: {type(error).__name__}: {error}", file=sys.stderr)


def _noted(activity: Activity | None) -> dict[str, Any]:
    if activity is None:
        return {}
    return {"step": activity.step, "work": activity.done, "part": activity.part, "exchange": activity.exchange()}


def _groups(torch: Any) -> tuple[dict[str, tuple[int, int]], bool]:
    """Collectives entered and completed, by process group; and whether there is a group. No group is touched, as its
    destructor could run in this thread, unless torch records nothing: then they are counted, completed or not."""
    in_group = len(torch._world.pg_map) > 0
    found = {
        name: (int(status["last_enqueued_collective"]), int(status["last_completed_collective"]))
        for recorded in _dumps(entries=False)
        for name, status in list(recorded.get("pg_status", {}).items())[:_MOST_GROUPS]
    }
    if in_group and not found:
        numbers = {name: group._get_sequence_number_for_group() for group, name in [*torch._world.pg_names.items()]}
        found = {name: (number, number) for name, number in list(numbers.items())[:_MOST_GROUPS]}
    return found, in_group


def _dumps(*, entries: bool) -> Iterator[dict[str, Any]]:
    from torch._C import _distributed_c10d as c10d

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        if dump := getattr(c10d, name, None):
            yield json.loads(dump(entries) or "{}")


def _recorded() -> Iterator[dict[str, Any]]:
    for recorded in _dumps(entries=True):
        entries = recorded.get("entries", [])
        yield from entries[len(entries) // 4 :]  # the first ones make all ranks equal, whatever is exchanged later


def _largest(entries: list[dict[str, Any]]) -> int | None:
    """Elements of the largest tensor of these collectives; None: there is none."""
    sizes = [size for entry in entries for name in ("input_sizes", "output_sizes") for size in entry.get(name) or ()]
    return max((_product(size) for size in sizes), default=None)


def _product(size: list[int]) -> int:
    elements = 1
    for length in size:
        elements *= length
    return elements


def _position(frame: FrameType | None) -> dict[str, str]:
    """Innermost line outside of libraries, the call into torch.distributed that it waits in, the imported package."""
    call = importing = ""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            importing = str(frame.f_locals.get("name", "")).partition(".")[0]
        elif code.co_filename.endswith(_C10D):
            if not code.co_name.startswith("_") and code.co_name != "wrapper":
                call = code.co_name
        elif not code.co_filename.startswith("<") and not any(part in code.co_filename for part in _NOT_THE_USERS):
            line = f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
            of = f" in {code.co_name}" if code.co_name != "<module>" else ""
            return {"line": f"{line}{of}"[:_LONGEST], "call": call, "importing": importing[:_LONGEST]}
        frame = frame.f_back
    return {"line": "", "call": call, "importing": importing[:_LONGEST]}
