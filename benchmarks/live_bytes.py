"""Peak of a GPT-2 step's live tensors, in bytes, without a GPU and without computing anything.

    python -m benchmarks.live_bytes                    # preset 124m, T = 1024: the table of docs/trainer.md
    python -m benchmarks.live_bytes --micro-batch 2 --optimizer-state int8 --loss-chunk 256

The forward and backward passes run on fake tensors, which have sizes and no memory. Each new storage counts from its
birth until nothing refers to it, rounded up to 512 bytes as CUDA's allocator does. What no operator of the passes
allocates is added by formula: moments of the optimizer,
what a compressed exchange keeps and sends (as in
contract/cost_model/memory.py), and the CUDA context with the libraries' workspaces.
"""

from __future__ import annotations

import argparse
import sys
import weakref
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contract.cost_model.memory import MIB, STATE_VALUE, TransformerTraining, exchange_bytes
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape
from trainer.workloads.gpt2 import PRESETS

VOCABULARY = 50257
GRAIN = 512
"""Bytes to which CUDA's allocator rounds up."""
CONTEXT_MIB = 450
"""CUDA context, cuBLAS workspace and kernels: an estimate, between 300 and 600 on consumer cards."""


class LiveBytes(TorchDispatchMode):
    """Counts the storages that live at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                self.count(one)
        return made

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = -(-storage.nbytes() // GRAIN) * GRAIN
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def peak_of_passes(shape: Gpt2Shape, computation: Computation, micro_batch: int) -> int:
    """Bytes of weights, gradients and what both passes of one micro-batch keep, at their peak; gradients are there
    before, as in all micro-batches of a step but the first. In bfloat16."""
    with FakeTensorMode(), LiveBytes() as live:
        model = GPT2(shape, computation=computation)
        for parameter in model.parameters():
            live.count(parameter)
            parameter.grad = torch.zeros_like(parameter)
        tokens = torch.zeros(micro_batch, shape.seq_len, dtype=torch.int64)
        live.peak = live.now
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens, tokens)
        loss.backward()
    return live.peak


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_bytes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="124m", choices=PRESETS)
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--gradient-checkpointing", nargs="+", default=["0", "selective", "1"], metavar="N|selective")
    parser.add_argument("--loss-chunk", type=int, nargs="+", default=[1024, 256], metavar="N")
    parser.add_argument("--optimizer-state", nargs="+", default=["fp32", "bf16", "int8"], choices=STATE_VALUE)
    given = parser.parse_args(argv)
    preset = PRESETS[given.preset]
    shape = Gpt2Shape(
        layers=preset.layers, heads=preset.heads, width=preset.width, seq_len=preset.seq_len, vocab_size=VOCABULARY
    )
    print("| micro-batch | computed again | chunk | state | passes | moments | exchange | context | sum |")
    print("|---" * 9 + "|")
    for micro_batch, again, chunk in product(given.micro_batch, given.gradient_checkpointing, given.loss_chunk):
        how = Computation(gradient_checkpointing=again if again == "selective" else int(again), loss_chunk=chunk)
        passes = peak_of_passes(shape, how, micro_batch)
        for state in given.optimizer_state:
            named = (str(micro_batch), again, str(chunk), state)
            mib = [-(-int(each) // MIB) for each in (passes, *other_bytes(shape, state), CONTEXT_MIB * MIB)]
            print("| " + " | ".join([*named, *map(str, mib), str(sum(mib))]) + " |", flush=True)
    return 0


def other_bytes(shape: Gpt2Shape, state: str) -> tuple[float, float]:
    """Bytes of AdamW's moments, and of a compressed exchange among five ranks."""
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in GPT2(shape).parameters())
    training = TransformerTraining(
        parameters=count, layers=shape.layers, width=shape.width, seq_len=shape.seq_len, vocab_size=shape.vocab_size,
        micro_batch=1, passes=1, loss_chunk=1024, optimizer_values=2 * count,
    )  # fmt: skip
    return 2 * count * STATE_VALUE[state], exchange_bytes(training, world_size=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
