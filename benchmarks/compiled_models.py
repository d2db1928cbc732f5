"""Models and batches of `benchmarks.compile`, and what is measured of one of them, in a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from trainer.config import TrainOptions
from trainer.engine.hardware import compiling
from trainer.engine.hardware.pass_times import PassTimer
from trainer.engine.sync.buckets import by_backward
from trainer.engine.sync.methods import ladder

Made = tuple[nn.Module, tuple[Any, ...]]
"""A model and the arguments of its forward pass."""
CPU = torch.device("cpu")
SKIPPED = 3
"""Passes that allocate memory."""
CLOSE = 0.05
"""Share of a backward pass, at its end, in which a bucket that becomes full is no early one."""


def _gpt2(layers: int, width: int, batch: int, length: int, vocab_size: int = 8192) -> Made:
    from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

    tokens = torch.randint(0, vocab_size, (batch, length))
    heads = max(2, width // 64)
    shape = Gpt2Shape(vocab_size=vocab_size, layers=layers, heads=heads, width=width, seq_len=length)
    return GPT2(shape, 0.0, Computation()), (tokens, tokens)


def _resnet(batch: int, size: int) -> Made:
    from trainer.models.resnet import SHAPES, ResNet

    return ResNet(SHAPES["resnet18"], 3, 10), (torch.randn(batch, 3, size, size),)


def _vit(batch: int) -> Made:
    from trainer.models.vit import SHAPES, ViT

    return ViT(SHAPES["vit-mini"], 3, 10, 32), (torch.randn(batch, 3, 32, 32),)


def _encoder(batch: int, length: int) -> Made:
    from trainer.models.encoder import Dropout, Encoder, EncoderShape

    shape = EncoderShape(layers=4, attention_heads=4, width=256, inner_width=1024, vocab_size=8192)
    tokens, among = torch.randint(0, 8192, (batch, length)), torch.ones(batch, 1, 1, length, dtype=torch.bool)
    return Encoder(shape, 2, Dropout()), (tokens, among)


def _lstm() -> Made:
    from trainer.models.traces import Calls, SequenceModel, TraceModelShape

    shape = TraceModelShape(event_kinds=500, features=2, width=128, layers=2)
    lengths = torch.randint(20, 41, (16,))
    return SequenceModel(shape, Calls(shape)), (torch.randint(0, 500, (16, 40)), torch.rand(16, 40, 2), lengths)


def _gnn() -> Made:
    from trainer.models.trace_graph import GraphModel
    from trainer.models.traces import Calls, TraceModelShape

    shape = TraceModelShape(event_kinds=500, features=2, width=64, layers=3, convolution="gin")
    calls, graphs = 640, 16
    edges, graph = torch.randint(0, calls, (2, calls)), torch.arange(calls) // (calls // graphs)
    return GraphModel(shape, Calls(shape)), (
        torch.randint(0, 500, (calls,)),
        torch.rand(calls, 2),
        edges,
        graph,
        graphs,
    )


MODELS: Mapping[str, Callable[[], Made]] = {
    "gpt2": partial(_gpt2, 6, 256, 8, 128),
    "resnet18": partial(_resnet, 8, 64),
    "lstm": _lstm,
}
"""Those whose backward pass is looked at."""
SHAPES: Mapping[str, Callable[[], Made]] = {
    "gpt2, 4 blocks of width 32": partial(_gpt2, 4, 32, 8, 64, 1024),
    "gpt2, 6 blocks of width 64": partial(_gpt2, 6, 64, 8, 64, 1024),
    "gpt2, 6 blocks of width 256": partial(_gpt2, 6, 256, 8, 128),
    "gpt2, 4 blocks of width 768": partial(_gpt2, 4, 768, 2, 256),
    "resnet18, 64 pixels": partial(_resnet, 16, 64),
    "vit-mini": partial(_vit, 16),
    "text encoder, 4 layers of width 256": partial(_encoder, 16, 64),
    "lstm": _lstm,
    "gnn": _gnn,
}
"""Those whose gain is estimated and measured."""


def fills(name: str, backend: str) -> None:
    """Print at which share of the backward pass each bucket of the exchange is full, and what the forecast says."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    if backend != "eager" and (lacking := compiling.compile_in_place(model, CPU, backend=backend)):
        raise SystemExit(lacking)
    buckets, left, at = by_backward(model.parameters()), list[int](), list[float]()

    def arrived(number: int) -> Callable[[object], None]:
        def hook(_parameter: object) -> None:
            left[number] -= 1
            if not left[number]:
                at[number] = time.perf_counter()

        return hook

    for number, bucket in enumerate(buckets):
        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(arrived(number))  # type: ignore[no-untyped-call]  # torch's own gap
    passes = []
    for _ in range(6):
        left[:], at[:] = [len(bucket.parameters) for bucket in buckets], [0.0] * len(buckets)
        loss = model(*inputs).float().square().mean()
        began = time.perf_counter()
        loss.backward()
        passes.append([(time_s - began) / (time.perf_counter() - began) for time_s in at])
    full = [median(shares) for shares in zip(*passes[2:], strict=True)]
    early = sum(bucket.count for bucket, share in zip(buckets, full, strict=True) if share < 1 - CLOSE)
    overlap = next(rung.overlap for rung in ladder(TrainOptions(), model) if rung.name == "int8")
    print(json.dumps({"full": full, "early": early / sum(one.count for one in buckets), "overlap": overlap}))


def gain(name: str, precision: str, backend: str, counted_s: float) -> None:
    """Print the parts of a forward and backward pass, and CPU seconds of passes with and without what was compiled,
    each for about `counted_s`, in turns: other processes, which slow both down, hardly change their ratio."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs = SHAPES[name]()

    def run() -> float:
        began = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model(*inputs).float().square().mean()
        loss.backward()
        model.zero_grad()
        return time.process_time() - began

    usual_s = min(run() for _ in range(SKIPPED))
    times = []
    for _ in range(SKIPPED):
        timer = PassTimer(model, compiling.parts(model, CPU), CPU)
        run()
        times.append(timer.read())
    parts = min((one for one in times if one), key=lambda one: one.whole_s)
    began = time.perf_counter()
    if lacking := compiling.compile_in_place(model, CPU, backend=backend):
        raise SystemExit(lacking)
    run()
    cost_s = time.perf_counter() - began
    eager, compiled = [], []
    for _ in range(max(SKIPPED, min(100, round(counted_s / usual_s)))):
        with compiling.uncompiled(model):
            run()
            eager.append(run())
        run()
        compiled.append(run())
    print(json.dumps({**vars(parts), "eager_s": median(eager), "compiled_s": median(compiled), "cost_s": cost_s}))
