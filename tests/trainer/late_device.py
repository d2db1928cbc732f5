"""A device of torch's for machines without a GPU: it computes on the CPU, and notes each call that would wait for it.

Its tensors have a device type of their own, so that the trainer treats them as a GPU's. As for
`torch.cuda.set_sync_debug_mode`, a call waits that needs a value or a shape which the device has yet to compute, or
that copies blocking: from the device, from memory that is not pinned, or into another layout.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import lstm_impl
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "late"
TRAINER = Path(__file__).parents[2] / "trainer"
AT_REST = ("engine/async_save.py", "engine/evaluate.py")
"""Files of the trainer within which it may wait: nothing is computed meanwhile."""
NEEDS_VALUES = {
    "_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique2",
    "unique_consecutive", "bincount", "histc", "allclose",
}  # fmt: skip
"""Operators whose result, or its shape, the CPU must know before it continues."""
FROM_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)


class LateTensor(Tensor):
    """A tensor on the device."""

    host: Tensor
    """Its values."""
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own way

    @staticmethod
    def __new__(cls, host: Tensor) -> LateTensor:
        made: LateTensor = Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=f"{NAME}:0",
        )  # fmt: skip
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host.__reduce_ex__(protocol)  # torch reads the memory of a view, which a wrapper has not


@dataclass
class Waits:
    """Calls that wait for the device, while a training takes its steps."""

    within: Callable[..., object]
    """Function that takes the steps."""
    places: dict[str, set[str]] = field(default_factory=dict)
    """Names of the calls, by file and function of the trainer."""
    raises: bool = False
    """True if such a call fails, wherever it is."""
    operators: int = 0
    """Operators that were queued so far."""
    reads: list[int] = field(default_factory=list)
    """Number of operators queued between each copy and its reading by the CPU."""

    def note(self, call: str) -> None:
        stack = traceback.extract_stack()
        if self.raises:
            raise AssertionError(f"{call} waits for the device")
        in_steps = any(frame.name == self.within.__name__ for frame in stack)
        if not in_steps and threading.current_thread() is threading.main_thread():
            return
        ours = [frame for frame in stack if Path(frame.filename).is_relative_to(TRAINER)]
        names = [f"{Path(frame.filename).relative_to(TRAINER)}" for frame in ours]
        if any(name in AT_REST for name in names):
            return
        place = f"{names[-1]}:{ours[-1].name}" if ours else "a thread of torch's"
        self.places.setdefault(place, set()).add(call)


_noted: list[Waits] = []


@contextmanager
def late_device(within: Callable[..., object]) -> Iterator[Waits]:
    """Register `torch.device("late")` for the block. `within`: function that takes the steps of a training."""
    _register()
    waits = Waits(within)
    _noted.append(waits)
    try:
        with _OnDevice(), _BeforeOperators():
            yield waits
    finally:
        _noted.clear()


class _Module(_DummyBackendModule):
    def manual_seed_all(self, seed: int) -> None:
        """Chance is the CPU's."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    # Of single operators: the fused ones are for a CPU or for a GPU.
    _operators.impl("lstm.input", lstm_impl, "AutogradPrivateUse1")


_operators = torch.library.Library("aten", "IMPL")


class _OnDevice(TorchDispatchMode):
    """Sees the operators that make tensors on the device, and those that copy to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _BeforeOperators(TorchFunctionMode):
    """Sees calls that no operator shows: tensors made of Python's numbers, and pinned memory, which a CPU has not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            return _pinned(func(*args, **kwargs))
        if func is Tensor.pin_memory:
            return _pinned(args[0].detach())  # which has the same strides, as on a GPU
        if func is Tensor.is_pinned:
            return _is_pinned(args[0])
        if func is Tensor.tolist and isinstance(args[0], LateTensor):
            _note("tolist")
            return args[0].host.tolist()
        if func is Tensor.tolist and (queued := getattr(args[0], "queued_before", None)) is not None:
            for waits in _noted:
                waits.reads.append(waits.operators - queued)
        if func in FROM_NUMBERS and _is_late(kwargs.get("device")):
            _note(f"torch.{func.__name__}")
            return LateTensor(func(*args, **(kwargs | {"device": "cpu"})))
        return func(*args, **kwargs)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the values, and give what it returns the device that torch would."""
    name = func.overloadpacket.__name__
    late = [one for one in tree_leaves((args, kwargs)) if isinstance(one, LateTensor)]
    target = kwargs.get("device")
    on_device = bool(late) if target is None else _is_late(target)
    if call := _waits(name, args, kwargs, late, on_device):
        _note(call)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    for waits in _noted:
        waits.operators += bool(late)
    hosts: Any = tree_map(lambda one: one.host if isinstance(one, LateTensor) else one, (args, kwargs))
    made = func(*hosts[0], **hosts[1])
    given = {id(one.host if isinstance(one, LateTensor) else one): one for one in tree_leaves((args, kwargs))}

    def placed(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if id(one) in given and not (target is not None and on_device):
            return given[id(one)]  # what an operator has changed in place
        if late and not on_device:
            one.queued_before = sum(waits.operators for waits in _noted)  # type: ignore[attr-defined]  # ours
        return LateTensor(one) if on_device else one

    return tree_map(placed, made)


def _waits(name: str, args: Any, kwargs: dict[str, Any], late: list[LateTensor], on_device: bool) -> str:
    """Name of the call that would wait for the device; empty where none would."""
    host = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and not isinstance(one, LateTensor)]
    free = kwargs.get("non_blocking", False)
    if name == "copy_":
        target, source = args[:2]
        free = free or (len(args) > 2 and args[2])
        if isinstance(target, LateTensor) == isinstance(source, LateTensor):
            return ""
        return _blocking(source, target.host if isinstance(target, LateTensor) else target, free=free)
    if name == "_to_copy":
        if bool(late) == on_device:
            return ""
        return _blocking(args[0], None, free=free)
    if not late:
        return ""
    if name in NEEDS_VALUES:
        return name
    if name == "repeat_interleave":
        return "" if kwargs.get("output_size") is not None else name
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return _indexed(name, args)
    if any(one.dim() for one in host):
        raise AssertionError(f"{name}: tensors on the device and on the CPU")
    return ""


def _blocking(source: Tensor, target: Tensor | None, *, free: bool) -> str:
    """A copy between the device and the CPU. `target`: None where the copy makes it, then pinned."""
    if isinstance(source, LateTensor):
        return "" if free and (target is None or _is_pinned(target)) else "copy to the CPU"
    formats = (torch.contiguous_format, torch.channels_last)[: 2 if source.dim() == 4 else 1]
    dense = any(source.is_contiguous(memory_format=one) for one in formats)
    return "" if free and dense and _is_pinned(source) else "copy to the device"


def _indexed(name: str, args: Any) -> str:
    indices = [one for one in tree_leaves(args[1]) if isinstance(one, Tensor)]
    if any(not isinstance(one, LateTensor) for one in indices):
        return f"{name} by a tensor of the CPU"
    by_mask = any(one.dtype in (torch.bool, torch.uint8) for one in indices)
    fills = name != "index" and args[2].numel() == 1  # as masked_fill
    return f"{name} by a mask" if by_mask and not fills else ""


def _note(call: str) -> None:
    for waits in _noted:
        waits.note(call)


def _is_late(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _pinned(tensor: Tensor) -> Tensor:
    tensor.pinned = True  # type: ignore[attr-defined]  # ours
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "pinned", False) or getattr(tensor._base, "pinned", False)
