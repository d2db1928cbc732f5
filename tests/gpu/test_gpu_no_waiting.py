"""No step of a training waits for the GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import ROOT
from tests.trainer.conftest import data_dir, picture_folder  # noqa: F401  # fixtures
from tests.trainer.test_no_waiting import RUNS, STEPS, folders  # noqa: F401  # a fixture
from trainer.data.to_device import to_device
from trainer.engine.dataloader import _pinned
from trainer.engine.hardware.batch_copies import BatchCopies

CUDA = torch.device("cuda")


@pytest.fixture
def refuses_to_wait() -> Iterator[None]:
    torch.zeros(1, device=CUDA)  # what the first call of a process makes, it waits for
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("refuses_to_wait")
def test_batches_and_numbers_are_copied_without_waiting() -> None:
    windows = torch.arange(20).reshape(2, 10)
    batch = tuple(part.to(CUDA, non_blocking=True) for part in _pinned((windows[:, :-1], windows[:, 1:])))
    weights = to_device([0.5, 2.0], CUDA)
    torch.cuda.set_sync_debug_mode("default")
    assert batch[1].cpu().equal(windows[:, 1:])
    assert weights.tolist() == [0.5, 2.0]


@pytest.mark.alone
def test_a_batch_arrives_while_the_gpu_computes() -> None:
    copies, ones = BatchCopies(CUDA), torch.ones(1 << 20).pin_memory()
    copies.begin((ones,))  # takes the GPU's memory, for which a driver may wait until nothing computes
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]  # clock cycles: about a second
    computing = torch.cuda.current_stream().record_event()
    batch = copies.begin((ones,))
    assert copies._stream
    copies._stream.synchronize()
    assert not computing.query()
    assert float(copies.finish(batch)[0].sum()) == 1 << 20


@pytest.mark.usefixtures("refuses_to_wait")
def test_a_call_that_waits_is_refused() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device=CUDA).item()


@pytest.mark.parametrize("precision", ["fp32", "auto", "fp16"])
@pytest.mark.parametrize("name", RUNS)
def test_no_step_waits(
    name: str,
    precision: str,
    folders: Callable[[str], list[str]],  # noqa: F811  # the fixture
    tmp_path: Path,
) -> None:
    workload, *options = RUNS[name]
    if workload == "traces-gnn":
        pytest.importorskip("torch_geometric")
    usual = [*STEPS, "--no-compile", "--seed", "7", "--precision", precision]
    words = [workload, "train", *folders(workload), "--run-dir", str(tmp_path / "run"), *usual, *options]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.gpu.refusing_steps", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
