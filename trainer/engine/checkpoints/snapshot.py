"""A copy in memory of what is trained, so that it can be written while the training continues."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """Copies whole trees of tensors into the same memory each time: pages that a process has touched before are
    written several times as fast as new ones."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []
        """(bytes,) uint8 each, in the order in which storages are met."""

    def take(self, tree: Any) -> Any:
        """The same tree of dictionaries, lists and tuples, its tensors on the CPU. What was taken before is void.

        Tensors that share memory do so in the copy: `torch.save` then writes the same bytes once, as it would of the
        originals. From a GPU everything is sent at once, into pinned memory, and waited for at the end.
        """
        taking = _Taking(self._memory)
        taken = taking.copied(tree)
        self._memory = taking.used
        for device in taking.devices:
            torch.cuda.synchronize(device)
        return taken


class _Taking:
    """One copy, on its way."""

    def __init__(self, memory: list[Tensor]) -> None:
        self._memory = memory
        self.used: list[Tensor] = []
        self.devices: set[torch.device] = set()
        """Those that are still sending."""
        self._met: dict[tuple[torch.device, int], Tensor] = {}

    def copied(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self._tensor(tree)
        if isinstance(tree, dict):
            twin = copy(tree)  # a module's state has attributes beside its entries
            for name, value in tree.items():
                twin[name] = self.copied(value)
            return twin
        if isinstance(tree, list | tuple):
            return type(tree)(self.copied(value) for value in tree)
        return tree

    def _tensor(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        known = self._met.get(place := (tensor.device, storage.data_ptr()))
        if known is None:
            known = self._met[place] = self._storage(
                torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            )
        twin = torch.empty(0, dtype=tensor.dtype)
        return twin.set_(known.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def _storage(self, content: Tensor) -> Tensor:
        number, pinned = len(self.used), content.is_cuda
        earlier = self._memory[number] if number < len(self._memory) else None
        if earlier is None or len(earlier) != len(content) or earlier.is_pinned() != pinned:
            earlier = torch.empty(len(content), dtype=torch.uint8, pin_memory=pinned)
        self.used.append(earlier)
        if pinned:
            self.devices.add(content.device)
        return earlier.copy_(content, non_blocking=pinned)
