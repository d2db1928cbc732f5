"""Python's numbers as tensors on a device, without waiting for what the device still computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def to_device(numbers: Sequence[float], device: torch.device) -> Tensor:
    """`torch.tensor(numbers, device=device)`, which copies from memory that is not pinned, and so waits for a GPU."""
    made = torch.tensor(numbers)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


@cache
def constant(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """The same for numbers that never change, such as weights of classes: made once in a process. Not to be changed."""
    with torch.inference_mode(mode=False):  # a tensor that is made within it can have no part in a training
        return to_device(numbers, device)
