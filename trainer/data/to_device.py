"""Python's numbers as tensors on a device, without waiting for what the device still computes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(numbers: Sequence[float], device: torch.device) -> Tensor:
    """`torch.tensor(numbers, device=device)`, which copies from memory that is not pinned, and so waits for a GPU."""
    made = torch.tensor(numbers)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)
