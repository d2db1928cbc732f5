"""Memory of this rank: how much a GPU has for it, whether it ran out, and how what a failed step held is released."""

from __future__ import annotations

import gc

import torch


def gpu_memory(device: torch.device | None = None) -> int:
    """Bytes of a GPU that this process may take, by default of the current one; 0 without a GPU."""
    if not torch.cuda.is_available() or (device is not None and device.type != "cuda"):
        return 0
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * torch.cuda.get_per_process_memory_fraction(device))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch or the kernel refused memory. On a CPU and in CUDA's libraries only the message shows it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "can't allocate memory",  # DefaultCPUAllocator
    "not enough memory",
    "Could not allocate bytes object",  # pybind11, between torch and Python
    "Cannot allocate memory",  # the kernel's ENOMEM, whoever reports it
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # cuDNN's answer where no algorithm's workspace fits
)


def free_memory() -> None:
    """Release the memory of a failed step: Python's reference cycles, then the blocks that torch caches."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
