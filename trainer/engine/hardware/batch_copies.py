"""Copies of batches to a rank's device."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from trainer.data.batch import Batch


class BatchCopies:
    """Copies batches to a GPU on a CUDA stream of their own, so that a batch travels while the GPU still computes with
    the one before it. Batches must lie in pinned memory without gaps: other copies wait. On other devices the copies
    are queued with the computation.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch's own gap

    def begin(self, batch: Batch) -> Batch:
        """The batch on the device, to be used only after `finish`."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            return tuple(part.to(self._device, non_blocking=True) for part in batch)

    def finish(self, batch: Batch) -> Batch:
        """Let the computation that is queued from now on wait for the copy; the CPU does not."""
        if self._stream:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_stream(self._stream)
            for part in batch:
                part.record_stream(
                    computing
                )  # its memory was reserved by the other stream, which must not reuse it yet
        return batch
