"""A thread with connections of its own, for what the training should not wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from trainer.engine.group import Group


class Stream:
    """Does one thing after another. To be made by all ranks."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group = group.branch()
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")

    def submit(self, work: Callable[[], None]) -> Future[None]:
        def run() -> None:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            with torch.no_grad():
                work()

        return self._thread.submit(run)
