"""Functions of torch that only a GPU or several nodes reach, by the names that all supported versions have."""

from __future__ import annotations

import torch.distributed as dist
from torch.nn import attention


def test_they_are_there() -> None:
    for name in ("list_flash_attention_impls", "activate_flash_attention_impl", "restore_flash_attention_impl"):
        assert callable(getattr(attention, name))
    assert issubclass(dist.DistStoreError, RuntimeError)
