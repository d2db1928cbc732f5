"""The scale of the loss: what float16 could not say of small gradients, it says of scaled ones."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


class LossScaler(torch.amp.GradScaler):
    """The same scale on all ranks: each learns of an overflow on any of them."""

    def overflowed(self, optimizer: Optimizer) -> None:
        """After `unscale_`: skip this update and lower the scale, whatever this rank has found in its own gradients."""
        if self.is_enabled():
            for found in self._found_inf_per_device(optimizer).values():
                found.fill_(1.0)
