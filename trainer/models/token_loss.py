"""Cross entropy of the next token, with all logits at once or in chunks of tokens.

The logits are the largest tensor of a small GPT: 4096 tokens of a vocabulary of 50257 take 824 MB in float32, and
training needs them, a copy in float32 if they are bfloat16, their logarithms and their gradient. In chunks only one
chunk of each is in memory: its part of the gradients is computed in the forward pass, nothing twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainer.models.layers import RegionOnGpu

CHUNK = 1024
ALIGNMENT = 64
"""Matrix kernels are slow at odd sizes such as 50257: the output layer is padded by rows that are never used."""


def chunk_for(tokens: int, vocab_size: int, gpu_memory: int, *, compiled: bool = False) -> int:
    """Tokens in a chunk; 0: all at once, as on a GPU, where torch.compile fuses that well, unless logits and gradients
    take a quarter of its memory. On a CPU (`gpu_memory` 0) chunks take as long where freed memory is kept, as by the
    image's tcmalloc, and 0.8 times as long where each step has to map it again (docs/benchmarks.md).
    `compiled`: whether `WholeTokenLoss` is."""
    # Logits and gradient in bfloat16, and with room for another half; otherwise also in float32.
    bytes_at_once = tokens * vocab_size * (6 if compiled else 10)
    return 0 if bytes_at_once < gpu_memory / 4 else CHUNK


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    scores: Tensor = F.linear(hidden, _padded(weight))[..., : len(weight)]
    return scores


def _masked_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """`logits` with columns for the rows of the padding, which are -inf and so change no loss. Compiled, the mask is
    part of other kernels, and these are quicker over rows of 50,304 values than of 50,257: on an H200 a step of GPT-2
    124M took 3 % less time with such a vocabulary (docs/benchmarks.md)."""
    padded = _padded(weight)
    scores: Tensor = F.linear(hidden, padded)
    if len(padded) == len(weight):
        return scores
    return scores.masked_fill(torch.arange(len(padded), device=scores.device) >= len(weight), -torch.inf)


def token_loss(hidden: Tensor, weight: Tensor, following: Tensor, chunk: int = 0) -> Tensor:
    """Sum over tokens. `hidden`: (…, width), the input of the output layer; `weight`: (vocabulary, width), its weights;
    `chunk`: tokens whose logits are in memory at a time, 0: all."""
    hidden, following = hidden.flatten(0, -2), following.flatten()
    if chunk:
        loss: Tensor = _in_chunks(hidden, weight, following, chunk)
        return loss
    scores = _masked_logits(hidden, weight) if torch.compiler.is_compiling() else logits(hidden, weight)
    return F.cross_entropy(scores.to(_accurate(scores.dtype)), following, reduction="sum")


class WholeTokenLoss(RegionOnGpu):
    """`token_loss` of all tokens at once, as a module: torch.compile makes a few kernels of it, which on a GPU read and
    write a third of the bytes, and keeps no logits in float32 (docs/adr/0054)."""

    def forward(self, hidden: Tensor, weight: Tensor, following: Tensor) -> Tensor:
        return token_loss(hidden, weight, following)


def _in_chunks(hidden: Tensor, weight: Tensor, following: Tensor, chunk: int) -> Tensor:
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with torch.autocast(device, enabled=False):
        # The cast is outside of the function: autograd casts the gradient of `hidden` back.
        arguments = (hidden.to(dtype), weight, following, chunk, wanted)
        if torch.compiler.is_compiling():
            # One operator of the graph: traced, the chunks would be unrolled, and there is little to fuse.
            in_graph: Tensor = _chunked_loss(*arguments)[0]
            return in_graph
        loss: Tensor = _ChunkedLoss.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's own gap
    return loss


Triple = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op("trainer::chunked_loss", mutates_args=())
def _chunked_loss(hidden: Tensor, weight: Tensor, following: Tensor, chunk: int, wanted: bool) -> Triple:
    return _loss_and_gradients(hidden, weight, following, chunk, wanted)


@_chunked_loss.register_fake
def _(hidden: Tensor, weight: Tensor, _following: Tensor, _chunk: int, wanted: bool) -> Triple:
    loss = hidden.new_empty((), dtype=_accurate(hidden.dtype))
    if wanted:
        return loss, torch.empty_like(hidden), torch.empty_like(weight)
    return loss, hidden.new_empty(0), weight.new_empty(0)


def _keep_gradients(ctx: Any, inputs: Any, output: Triple) -> None:  # noqa: ARG001  # torch names them
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _scaled(ctx: Any, upstream: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    grad_hidden, grad_weight = ctx.saved_tensors
    return grad_hidden * upstream.to(grad_hidden.dtype), grad_weight * upstream, None, None, None


_chunked_loss.register_autograd(_scaled, setup_context=_keep_gradients)


def _loss_and_gradients(hidden: Tensor, weight: Tensor, following: Tensor, chunk: int, wanted: bool) -> Triple:
    """The loss, and its gradients where they are `wanted`, otherwise empty tensors."""
    read = _read_rows(weight, hidden.dtype)
    loss = torch.zeros((), device=hidden.device, dtype=_accurate(hidden.dtype))
    # One buffer for all chunks: to allocate memory costs a CPU more than to fill it.
    buffer = hidden.new_empty(min(chunk, len(hidden)), len(read))
    grad_hidden = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
    grad_weight = torch.zeros_like(weight) if wanted else weight.new_empty(0)
    for start in range(0, len(hidden), chunk):
        part, targets = hidden[start : start + chunk], following[start : start + chunk, None]
        scores = torch.mm(part, read.t(), out=buffer[: len(part)])[:, : len(weight)]
        log_p = torch.log_softmax(scores, 1, dtype=loss.dtype)
        loss -= log_p.gather(1, targets).sum()
        if not wanted:
            continue
        of_logits = log_p.exp_().scatter_add_(1, targets, -torch.ones_like(targets, dtype=loss.dtype))
        of_logits = of_logits.to(hidden.dtype)
        torch.mm(of_logits, read[: len(weight)], out=grad_hidden[start : start + chunk])
        if of_logits.dtype == weight.dtype:
            grad_weight.addmm_(of_logits.t(), part)
        else:
            grad_weight += of_logits.t() @ part
    return loss, grad_hidden, grad_weight


class _ChunkedLoss(torch.autograd.Function):
    """Loss in chunks, not compiled: it changes the gradients in place instead of copying them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, following: Tensor, chunk: int, wanted: bool) -> Tensor:
        loss, *ctx.gradients = _loss_and_gradients(hidden, weight, following, chunk, wanted)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.gradients
        del ctx.gradients  # changed in place below: a second backward pass must not find them
        return grad_hidden.mul_(upstream), grad_weight.mul_(upstream), None, None, None


def _padded(weight: Tensor) -> Tensor:
    padding = -len(weight) % ALIGNMENT
    return F.pad(weight, (0, 0, 0, padding)) if padding else weight  # to pad by nothing is a copy, too


def _read_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`_padded`, in another type by the same copy."""
    padding = -len(weight) % ALIGNMENT
    if not padding:
        return weight.to(dtype)
    rows = weight.new_empty(len(weight) + padding, weight.shape[1], dtype=dtype)
    rows[: len(weight)] = weight
    rows[len(weight) :] = 0
    return rows


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
