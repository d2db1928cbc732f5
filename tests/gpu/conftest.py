"""What the tests on an NVIDIA GPU share. They are collected everywhere, and say why they did not run.

One GPU is enough for all but those with a `cards` fixture: NCCL refuses two ranks on one GPU, gloo does not.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # so that this folder runs by itself: pytest --confcutdir=tests/gpu tests/gpu
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def no_gpu() -> str:
    """Why no test can run on a GPU here; empty where it can."""
    if not importlib.util.find_spec("torch"):
        return "no NVIDIA GPU: torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"no NVIDIA GPU: torch {torch.__version__} finds none"
    return ""


NO_GPU = no_gpu()


class Unavailable(pytest.Module):
    """A file of tests that imports torch, where there is none."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(NO_GPU, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if importlib.util.find_spec("torch"):
        return None
    found: pytest.Module = Unavailable.from_parent(parent, path=module_path)
    return found


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)
    if NO_GPU:
        item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture
def cards() -> Callable[[int], None]:
    """`cards(2)` passes over a test on a machine with fewer GPUs."""
    import torch

    def need(number: int) -> None:
        if torch.cuda.device_count() < number:
            pytest.skip(f"needs {number} NVIDIA GPUs for NCCL, this machine has {torch.cuda.device_count()}")

    return need


@pytest.fixture(autouse=True)
def as_torch_comes() -> Iterator[None]:
    """Undo what a test's training has set in this process: TF32 would round the products of the next test, and what
    torch.compile keeps would take memory that another one is held to."""
    yield
    if NO_GPU:
        return
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(mode=False)
    torch.cuda.set_sync_debug_mode("default")
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
