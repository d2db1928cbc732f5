"""What a step copies to a GPU is copied without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.data.to_device import to_device
from trainer.engine.dataloader import _pinned

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


@pytest.mark.usefixtures("refuses_to_wait")
def test_a_call_that_waits_is_refused() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device=CUDA).item()
