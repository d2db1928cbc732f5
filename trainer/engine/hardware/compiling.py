"""torch.compile where it pays: compiling takes a while, and a short run never earns that back."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

COST_S = {"cpu": 36.0, "cuda": 45.0}
"""GPT-2 on a CPU, measured; on a GPU estimated."""
GPU_GAIN = 0.5
"""How much faster a step gets there: 250 to 135 ms for GPT-2 in nanoGPT's README; taken with care."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    compile: bool
    why: str


def saved_s(step_s: float, steps_left: int, gain: float) -> float:
    """Seconds that compiled steps save; `gain` 0.25 means 1.25 times as many steps in the same time."""
    return step_s * steps_left * gain / (1 + gain)


def pays(step_s: float, steps_left: int, gain: float, cost_s: float) -> bool:
    return saved_s(step_s, steps_left, gain) > cost_s


def decide(step_s: float, steps_left: int, gain: float, cost_s: float) -> Decision:
    saved = saved_s(step_s, steps_left, gain)
    would = f"{steps_left} steps of {_seconds(step_s)} would be {_seconds(saved)} shorter, and compiling takes"
    compile_ = pays(step_s, steps_left, gain, cost_s)
    return Decision(compile=compile_, why=f"{'compiled' if compile_ else 'not compiled'}: {would} {_seconds(cost_s)}")


def cost_s(device: torch.device) -> float:
    return COST_S.get(device.type, COST_S["cuda"])


def gain(device: torch.device, on_cpu: float) -> float:
    """`on_cpu`: what the workload knows of itself there (`Workload.compile_gain`)."""
    return on_cpu if device.type == "cpu" else GPU_GAIN


def compile_in_place(
    model: nn.Module, device: torch.device, *, dynamic: bool | None = None, backend: str = "inductor"
) -> str:
    """Compile `model.forward` without a wrapper around the model, so that the names of its weights stay.

    Returns why that cannot be, empty if it can. `dynamic=True` is for batches of many lengths: one kernel for all
    instead of one for each length, until torch gives up.
    """
    lacking = what_lacks(device)
    if not lacking:

        def call(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

        # What `model.compile()` does, but for the function between: without it torch sees that the code of a bare
        # nn.Sequential is its own, and silently compiles nothing (torch 2.13).
        model._compiled_call_impl = torch.compile(call, dynamic=dynamic, backend=backend)
    return lacking


def is_of_the_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def what_lacks(
    device: torch.device,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    headers: Path | None = None,
) -> str:
    """Requirement of torch.compile that this machine lacks, known before a minute of the first step; empty if none."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    wanted = environ.get("CXX" if device.type == "cpu" else "CC") or ("g++" if device.type == "cpu" else "gcc")
    if not which(wanted):
        return f"torch.compile needs a compiler, and {wanted} is not there: install it, or name another as CXX or CC"
    headers = headers or Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"torch.compile needs Python's headers, and {headers}/Python.h is not there: install python3-dev"
    return ""


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
