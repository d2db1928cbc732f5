"""The command line and environment that /proc shows of this process, as after an exec.

A forked process has those of its parent: `ps`, the agent and a script that reads /proc/self/cmdline would take it for
that one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = 2**32 - 1
_FIELDS = ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
           "arg_start", "arg_end", "env_start", "env_end")  # fmt: skip
_IN_STAT = {"start_code": 26, "end_code": 27, "start_stack": 28, "start_data": 45, "end_data": 46, "start_brk": 47}
"""Place of each address in /proc/PID/stat (proc(5)), counted from 1."""
_held: list[mmap.mmap] = []
"""Memory that the kernel reads for as long as this process lives."""


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of prctl(2)."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in _FIELDS),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Show these. False: this kernel does not let a process do so without privileges; everything else works."""
    words = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in argv)
    variables = b"".join(f"{name}={value}".encode(errors="surrogateescape") + b"\0" for name, value in environ.items())
    memory = mmap.mmap(-1, len(words) + len(variables), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(words + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        values = {name: int(stat[place - 3]) for name, place in _IN_STAT.items()}
        middle, end = start + len(words), start + len(words) + len(variables)
        shown = _MemoryMap(
            **values, brk=libc.sbrk(0), arg_start=start, arg_end=middle, env_start=middle, env_end=end,
            exe_fd=_NO_FILE,
        )  # fmt: skip
        if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(shown), ctypes.sizeof(shown), 0) == 0:
            _held.append(memory)
            return True
    return False
