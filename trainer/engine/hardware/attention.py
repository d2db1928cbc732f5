"""Kernel of scaled dot-product attention: the one that was asked for, or the fastest for what this model computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from trainer.agent import heartbeat
from trainer.errors import OptionError
from trainer.out_of_memory import free_memory

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("auto", "flash", "math")
MOST_SHAPES = 3
"""Shapes of attention in one model that are timed; nearly all models have one."""
ROUNDS = 3
SAMPLE_MS = 20.0
"""Time over which a kernel is called again and again in each round."""

Trial = Callable[[], AbstractContextManager[object]]
Timer = Callable[[Callable[[], object]], float]
"""Milliseconds of one call."""


def must_have_kernel(sdpa: str, device_type: str) -> None:
    """torch itself reports a kernel that does not exist only in the first step, and not which ones do."""
    if device_type == "cpu" and sdpa not in ON_CPU:
        raise OptionError(f"--sdpa {sdpa}: a CPU has only {', '.join(ON_CPU)}")


class AttentionKernels:
    """Choice of the kernel for all threads of this process, until its context ends. Not around forward passes alone:
    with gradient checkpointing the backward pass computes attention as well."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> AttentionKernels:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def only(self, name: str) -> None:
        """Use this kernel; where it cannot compute something, that fails."""
        self._stack.enter_context(sdpa_kernel(KERNELS[name]))

    def prefer(self, name: str) -> None:
        """Use this kernel, or an implementation of flash attention; where it cannot compute something, another one."""
        if name not in KERNELS:
            self._stack.enter_context(_implementation(name))
        first = KERNELS.get(name, SDPBackend.FLASH_ATTENTION)
        others = [kernel for kernel in (*KERNELS.values(), SDPBackend.OVERRIDEABLE) if kernel != first]
        self._stack.enter_context(sdpa_kernel([first, *others], set_priority=True))

    def choose(
        self, calls: Sequence[AttentionCall], device: torch.device, kernels: Mapping[str, Trial], timer: Timer
    ) -> str:
        """Prefer the fastest of the kernels that can compute these calls. Returns a line for people; empty where there
        is nothing to choose."""
        found = fastest(calls, device, kernels, timer)
        if len(found) < 2:
            return ""
        best = min(found, key=found.__getitem__)
        self.prefer(best)
        figures = ", ".join(f"{name} {ms:.2f} ms" for name, ms in found.items())
        return f"attention by {best}, for {' and '.join(map(str, calls))}, forward and backward: {figures}"


# ── Calls of attention in a model ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """Arguments of `scaled_dot_product_attention`, without their values."""

    query: tuple[int, ...]
    """(samples, heads, length, width of a head)."""
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: torch.dtype
    mask: tuple[int, ...] | None = None
    mask_dtype: torch.dtype = torch.bool
    dropout: float = 0.0
    causal: bool = False
    grouped: bool = False
    """Whether several heads of the queries share one of keys and values."""

    def times(self, factor: int) -> AttentionCall:
        """The same for so many times the samples."""
        mask = self.mask
        if mask is not None and len(mask) == 4 and mask[0] == self.query[0]:
            mask = (mask[0] * factor, *mask[1:])
        query, key, value = ((shape[0] * factor, *shape[1:]) for shape in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, mask=mask)

    def __str__(self) -> str:
        kind = f"{' causal' * self.causal}{' masked' * (self.mask is not None)}{' with dropout' * (self.dropout > 0)}"
        return f"{' x '.join(map(str, self.query))}{kind} in {str(self.dtype).removeprefix('torch.')}"


class AttentionSeen(TorchFunctionMode):
    """Within it, the different calls of attention are noted in `calls`."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: of matrix products."""
        super().__init__()
        self._dtype = dtype
        self.calls: dict[AttentionCall, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            self._note(*args, **kwargs)
        return func(*args, **kwargs)

    def _note(self, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> None:
        if query.is_nested or query.dim() != 4:
            return
        how = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), more, strict=False)), **named}
        mask: Tensor | None = how.get("attn_mask")
        call = AttentionCall(
            query=tuple(query.shape),
            key=tuple(key.shape),
            value=tuple(value.shape),
            dtype=self._dtype if query.dtype == torch.float32 else query.dtype,
            mask=None if mask is None else tuple(mask.shape),
            mask_dtype=torch.bool if mask is None else mask.dtype,
            dropout=how.get("dropout_p", 0.0),
            causal=how.get("is_causal", False),
            grouped=how.get("enable_gqa", False),
        )
        self.calls[call] = None


# ── Measurement ───────────────────────────────────────────────────────────────────────────────────


def trials(*, same_shapes: bool) -> dict[str, Trial]:
    """Kernels to be timed, each within its context. `math` is no candidate: it keeps all weights of attention. Nor is
    cuDNN where shapes vary: it prepares each new one, and a step of BERT-base over texts of all lengths took 57 ms in
    place of 35 (an H200, docs/gpu.md)."""
    left_out = {"math"} if same_shapes else {"math", "cudnn"}
    own = {name: partial(sdpa_kernel, kernel) for name, kernel in KERNELS.items() if name not in left_out}
    others = {name.lower(): partial(_flash_of, name.lower()) for name in torch_attention.list_flash_attention_impls()}
    return {**own, **others}


def fastest(
    calls: Sequence[AttentionCall], device: torch.device, kernels: Mapping[str, Trial], timer: Timer
) -> dict[str, float]:
    """Milliseconds that each kernel takes for all calls, forward and backward; without the kernels that cannot compute
    them here."""
    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each reason why a kernel cannot be used
        for call in calls[:MOST_SHAPES]:
            times: dict[str, float] = {}
            failed: set[str] = set()
            try:
                work = _work(call, device)
            except RuntimeError:  # out of memory
                return {}
            # In turns, as a GPU's clock rises during the first.
            for _ in range(ROUNDS):
                for name, trial in kernels.items():
                    heartbeat.part("trial")
                    if name in failed:
                        continue
                    try:
                        with trial():
                            times[name] = min(times.get(name, float("inf")), timer(work))
                    except (RuntimeError, ImportError, ValueError, AttributeError):
                        failed.add(name)
            measured = {name: ms for name, ms in times.items() if name not in failed}
            found = {n: found.get(n, 0.0) + ms for n, ms in measured.items() if not found or n in found}
            if not found:
                break
    free_memory()
    return found


def _work(call: AttentionCall, device: torch.device) -> Callable[[], object]:
    """Forward and backward pass on random values, laid out in memory as models' projections leave them."""

    def part(shape: tuple[int, ...]) -> Tensor:
        samples, heads, length, width = shape
        made = torch.randn(samples, length, heads, width, device=device, dtype=call.dtype)
        return made.transpose(1, 2)

    query, key, value = (part(shape).requires_grad_() for shape in (call.query, call.key, call.value))
    slope = part((*call.query[:3], call.value[3]))
    mask = None
    if call.mask is not None:
        is_bool = call.mask_dtype == torch.bool
        mask = (torch.ones if is_bool else torch.zeros)(call.mask, dtype=call.mask_dtype, device=device)
        mask = mask if is_bool else mask.to(call.dtype)

    def work() -> object:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=call.dropout, is_causal=call.causal, enable_gqa=call.grouped
        )
        return torch.autograd.grad(out, (query, key, value), slope)

    return work


def gpu_ms(work: Callable[[], object]) -> float:
    """Milliseconds of one call on the current GPU."""

    def run(times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own gap
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / times

    run(1)  # loads the kernel, allocates
    return run(max(1, min(20, round(SAMPLE_MS / max(run(1), 1e-3)))))


@contextmanager
def _implementation(name: str) -> Iterator[None]:
    """An implementation of flash attention other than torch's own, such as FA3, whose package must be installed."""
    torch_attention.activate_flash_attention_impl(name.upper())
    try:
        yield
    finally:
        torch_attention.restore_flash_attention_impl()


@contextmanager
def _flash_of(name: str) -> Iterator[None]:
    with _implementation(name), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield
