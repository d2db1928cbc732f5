"""A GPU changes pictures as a CPU does, and is not waited for."""

from __future__ import annotations

import numpy as np
import torch

from trainer.data.augment import Augmentation
from trainer.data.order import uniform
from trainer.data.randaugment import RandAugment


def test_random_changes_are_the_cpus_and_nothing_waits() -> None:
    augmentation = Augmentation(crop=32, erase=0.3, randaugment=RandAugment(operations=2, magnitude=9))
    chance = uniform(3, np.arange(200), augmentation.columns).astype(np.float32)
    pictures = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (200, 3, 32, 32))).float()
    plan = augmentation.plan(chance)
    expected = augmentation.on_device(pictures, torch.from_numpy(chance), plan)
    given = [part.cuda() for part in (pictures, torch.from_numpy(chance), *plan)]
    augmentation.on_device(given[0], given[1], given[2:])
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augmentation.on_device(given[0], given[1], given[2:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    differing = ((found.cpu() - expected).abs() > 1).float().mean()
    assert differing < 0.01  # where a level lies on the edge of a step, its last bit decides
