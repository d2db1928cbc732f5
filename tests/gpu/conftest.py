"""Fixtures and rules of the tests on an NVIDIA GPU. They are collected everywhere, and say why they did not run.

One GPU is enough for all but those with a `cards` fixture: NCCL refuses two ranks on one GPU, gloo does not. A worker
for each core but a few, and then the tests whose figures other work on the GPU would change:

    python -m pytest tests/gpu --confcutdir=tests/gpu -p no:cacheprovider -n 12 --dist load -W default -m "not alone"
    python -m pytest tests/gpu --confcutdir=tests/gpu -p no:cacheprovider -n 0 -W default -m alone
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
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the trainer does
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # torch takes one for each core, in each worker
WARNINGS = ("default", "error::pytest.PytestUnhandledThreadExceptionWarning")
"""Filters here: a warning of whichever torch and driver the GPU's machine has is listed, and fails no test."""


def no_gpu() -> str:
    """Return why no test can run on a GPU here; empty where it can."""
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


def pytest_configure(config: pytest.Config) -> None:
    """Apply the filters to imports as well, where these tests run by themselves."""
    if (config.invocation_params.dir / (config.getoption("confcutdir") or "")).resolve() == Path(__file__).parent:
        for warnings in WARNINGS:
            config.addinivalue_line("filterwarnings", warnings)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.gpu)
    item.add_marker(pytest.mark.filterwarnings(*WARNINGS))
    item.add_marker(pytest.mark.timeout(240))  # many workers share the cores, and some compile a whole ResNet twice
    if NO_GPU:
        item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the many short runs that look for waiting last: the others take longer, and each of them shows more."""
    items.sort(key=lambda item: item.path.name == "test_gpu_no_waiting.py")


@pytest.fixture
def cards() -> Callable[[int], None]:
    """`cards(2)` passes over a test on a machine with fewer GPUs."""
    import torch

    def need(number: int) -> None:
        if torch.cuda.device_count() < number:
            pytest.skip(f"needs {number} NVIDIA GPUs for NCCL, this machine has {torch.cuda.device_count()}")

    return need


@pytest.fixture
def compiler() -> None:
    """Pass over a test where torch.compile lacks something."""
    import torch

    from trainer.engine.hardware.compiling import missing_requirement

    if missing := missing_requirement(torch.device("cuda")):
        pytest.skip(missing)


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
