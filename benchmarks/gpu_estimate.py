"""Expected time of a GPT-2 step on a GPU: operations, bytes and kernels, counted without one.

    python -m benchmarks.gpu_estimate                     # GPT-2 124M, T = 1024, an H100: tables of docs/benchmarks.md
    python -m benchmarks.gpu_estimate --quick             # test that everything runs

Uncompiled passes run on fake tensors, which have sizes and no memory: each operator that is no view counts as a kernel,
which reads its inputs and writes its outputs once. What torch.compile fuses is counted by Inductor, which compiles a
block, and the loss, for the CPU at two small sizes; bytes grow in proportion from there. Products of matrices and
attention count by their operations alone. Seconds follow from `RATES`: they are estimates, where the counts are not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.models.gpt2 import GPT2, Computation, Gpt2Block, Gpt2Shape
from trainer.models.token_loss import WholeTokenLoss, token_loss
from trainer.workloads.gpt2 import PRESETS

PEAK = 989e12
"""FLOP/s of an H100 SXM in bfloat16, not sparse (its data sheet)."""
RATES = {"products": 0.65 * PEAK, "attention": 0.40 * PEAK, "bytes": 2.8e12}
"""Rates that large kernels are expected to reach: FLOP/s of cuBLAS at these shapes, of FlashAttention with a head width
of 64, causal, forward and backward, and bytes per second of 3.35e12."""
CHUNK = 2048
SOME = 128
"""Tokens of the loss at size 1."""
OPTIMIZER_BYTES = 40
"""Bytes per weight: AdamW reads it, its gradient and two moments and writes three of them; clipping reads the gradient
twice and writes it once."""
OPTIMIZER_KERNELS = 40
"""Estimate: lists of tensors go through few kernels."""
VOCABULARY = 50257
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Kernels, and bytes of those that are neither a product nor attention."""

    kernels: float = 0
    bytes: float = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(kernels=self.kernels + other.kernels, bytes=self.bytes + other.bytes)

    def times(self, factor: float) -> Counts:
        return Counts(kernels=self.kernels * factor, bytes=self.bytes * factor)


class Operators(TorchDispatchMode):
    """Counts the operators that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given, new = (_tensors(each) for each in ((args, kwargs), made))
        storages = {one.untyped_storage()._cdata for one in given}
        changes = func._schema.is_mutable
        if changes or any(one.untyped_storage()._cdata not in storages for one in new):
            name = func._schema.name
            if name not in ("aten::empty", "aten::empty_like", "aten::detach", "aten::empty_strided"):
                self.kernels += 1
                if not name.startswith(PRODUCTS):
                    self.bytes += sum(one.numel() * one.element_size() for one in (*given, *new))
        return made


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_estimate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 64], metavar="N")
    parser.add_argument("--quick", action="store_true", help="small, to test that everything runs")
    given = parser.parse_args(argv)
    preset, vocabulary = (PRESETS["tiny"], 1001) if given.quick else (PRESETS["124m"], VOCABULARY)
    seq_len = 32 if given.quick else 1024
    shape = Gpt2Shape(
        layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=seq_len, vocab_size=vocabulary
    )
    for batch, table in zip(given.batch_size, counts(shape, given.batch_size), strict=True):
        own = {"products": products(shape) * batch, "attention": attention(shape) * batch}
        parts = ", ".join(f"{flops / 1e12:.2f} TFLOP of {name}" for name, flops in own.items())
        print(f"\n{batch} × {seq_len} tokens, bfloat16; {parts}\n")
        print("| | kernels | GB | milliseconds, estimated | MFU, estimated |\n|---|---|---|---|---|")
        for name, one in table.items():
            seconds = seconds_of(shape, batch, one)
            mfu = shape.flops_per_token * batch * seq_len / seconds / PEAK
            print(f"| {name} | {one.kernels:,.0f} | {one.bytes / 1e9:.1f} | {1000 * seconds:.1f} | {100 * mfu:.0f} % |")
    return 0


def counts(shape: Gpt2Shape, batches: Sequence[int]) -> list[dict[str, Counts]]:
    """Counts of a whole step by batch: not compiled, with compiled blocks, and with a compiled loss, too."""
    blocks = compiled(lambda size: (Gpt2Block(shape, 0.0), (hidden(shape, size),)))
    loss = compiled(lambda size: (WholeTokenLoss(), loss_arguments(shape, SOME * size)))
    return [_counts(shape, batch, blocks, loss) for batch in batches]


def _counts(
    shape: Gpt2Shape, batch: int, blocks: Callable[[float], Counts], whole_loss: Callable[[float], Counts]
) -> dict[str, Counts]:
    tokens = batch * shape.seq_len
    with FakeTensorMode():
        model = GPT2(shape, computation=Computation(loss_chunk=0))
        block = Gpt2Block(shape, 0.0)
        whole = uncompiled(lambda: model(*torch.zeros(2, batch, shape.seq_len, dtype=torch.int64)))
        one = uncompiled(lambda: block(hidden(shape, batch)))
        loss = uncompiled(lambda: WholeTokenLoss()(*loss_arguments(shape, tokens)))
        chunks = uncompiled(lambda: token_loss(*loss_arguments(shape, tokens), CHUNK))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    step = Counts(kernels=OPTIMIZER_KERNELS, bytes=OPTIMIZER_BYTES * parameters)
    fused = blocks(batch)
    with_blocks = whole + one.times(-shape.layers) + fused.times(shape.layers) + step
    without_loss = with_blocks + loss.times(-1)
    return {
        "not compiled": whole + step,
        "blocks compiled": with_blocks,
        f"blocks compiled, loss in chunks of {CHUNK}": without_loss + chunks,
        "blocks and loss compiled": without_loss + whole_loss(tokens / SOME),
    }


def hidden(shape: Gpt2Shape, batch: int) -> Tensor:
    return torch.zeros(batch, shape.seq_len, shape.width, requires_grad=True)


def loss_arguments(shape: Gpt2Shape, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = torch.zeros(tokens, shape.width), torch.zeros(shape.vocab_size, shape.width)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.zeros(tokens, dtype=torch.int64)


def uncompiled(loss_of: Callable[[], Tensor]) -> Counts:
    counted = Operators()
    with counted, torch.autocast("cpu", torch.bfloat16):
        loss = loss_of()
    gradient = torch.zeros_like(loss)
    with counted:
        loss.backward(gradient)  # type: ignore[no-untyped-call]  # torch's own gap
    return Counts(kernels=counted.kernels, bytes=counted.bytes)


Made = Callable[[int], tuple[nn.Module, tuple[Tensor, ...]]]


def compiled(made: Made) -> Callable[[float], Counts]:
    """Counts by size of a module and its arguments, from what Inductor makes of those of sizes 1 and 2."""
    found = []
    for small in (1, 2):
        torch._dynamo.reset()
        module, arguments = made(small)
        with inductor() as kernels, torch.autocast("cpu", torch.bfloat16):
            torch.compile(module, dynamic=False)(*arguments).sum().backward()
        found.append(kernels)
    one, two = (sum(moved for is_product, moved in each if not is_product) for each in found)
    return lambda size: Counts(kernels=len(found[0]), bytes=one + (two - one) * (size - 1))


@contextmanager
def inductor() -> Iterator[list[tuple[bool, int]]]:
    """Kernels that are made meanwhile: whether each is torch's own, for a product or attention, and its bytes."""
    kernels: list[tuple[bool, int]] = []
    original = GraphLowering.compile_to_module

    def counting(graph: Any) -> Any:
        module = original(graph)
        nodes = [node for node in graph.scheduler.nodes if not isinstance(node, NopKernelSchedulerNode)]
        kernels.extend(
            (isinstance(one, ExternKernelSchedulerNode), one.get_read_write_buffers_sizes()) for one in nodes
        )
        return module

    GraphLowering.compile_to_module = counting  # type: ignore[method-assign]  # its kernels are known nowhere else
    try:
        with torch._inductor.config.patch(fx_graph_cache=False):  # what is cached is not counted again
            yield kernels
    finally:
        GraphLowering.compile_to_module = original  # type: ignore[method-assign]  # as above


def products(shape: Gpt2Shape) -> float:
    """Floating-point operations of a sequence's matrix products, forward and backward."""
    weights = shape.vocab_size * shape.width + shape.layers * 12 * shape.width**2
    return 6.0 * weights * shape.seq_len


def attention(shape: Gpt2Shape) -> float:
    """Those of its causal attention: two products forward and five backward, of half a square each."""
    return 7.0 * shape.layers * shape.width * shape.seq_len**2


def seconds_of(shape: Gpt2Shape, batch: int, counts: Counts) -> float:
    return (
        batch * products(shape) / RATES["products"]
        + batch * attention(shape) / RATES["attention"]
        + counts.bytes / RATES["bytes"]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
