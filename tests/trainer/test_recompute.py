"""Gradient checkpointing: the same gradients from less memory, with every model of ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from contract.cost_model.memory import TransformerTraining, forecast_memory, smaller, words_of
from tests.trainer.forked import alone
from trainer.engine.hardware import compiling
from trainer.errors import OptionError
from trainer.models import encoder, resnet, vit
from trainer.models.classifier import ClassifierShape, build
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape
from trainer.models.layers import Recompute, RecomputedBlock
from trainer.options import add_options, values_given
from trainer.workloads.gpt2 import Gpt2Options
from trainer.workloads.text_options import TextOptions
from trainer.workloads.vision_options import VisionOptions

GPT = Gpt2Shape(layers=4, heads=4, width=64, seq_len=64, vocab_size=50)
BERT = encoder.EncoderShape(layers=4, attention_heads=4, width=64, inner_width=256, vocab_size=50)
TEXTS = torch.arange(8 * 64).reshape(8, 64) % 50
PICTURES = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(2))
MODELS: dict[str, tuple[Callable[[Recompute, float], nn.Module], Tensor]] = {
    "gpt2": (lambda how, p: GPT2(GPT, p, Computation(gradient_checkpointing=how)), TEXTS),
    "encoder": (
        lambda how, p: encoder.Encoder(BERT, 5, encoder.Dropout(hidden=p, attention=p, head=p), checkpointing=how),
        TEXTS,
    ),
    "vit": (lambda how, _: vit.ViT(vit.SHAPES["vit-mini"], 3, 5, 32, how), PICTURES),
    "resnet": (lambda how, _: resnet.ResNet(resnet.SHAPES["resnet18"], 3, 5, how), PICTURES),
}
"""Models by what is computed again and the dropout."""
AT_MOST: dict[str, dict[Recompute, float]] = {
    "gpt2": {"selective": 0.6, 2: 0.6, 1: 0.1},
    "encoder": {"selective": 0.6, 2: 0.6, 1: 0.1},
    "vit": {"selective": 0.75, 2: 0.6, 1: 0.1},
    "resnet": {"selective": 0.9, 2: 0.8, 1: 0.6},
}
"""Share of the memory without."""


def trained(name: str, how: Recompute, dropout: float, *, compiled: bool = False) -> tuple[int, dict[str, Tensor]]:
    """Bytes that a forward pass leaves, and the gradients and buffers after the backward pass."""
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model = make(how, dropout).train()
    if compiled:
        assert compiling.compile_in_place(model, torch.device("cpu"), backend="aot_eager") == ""
    torch.manual_seed(3)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        out = model(inputs)
    left = sum(event.self_cpu_memory_usage for event in profiled.key_averages())
    out.square().mean().backward()
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return left, {**gradients, **dict(model.named_buffers())}


@pytest.mark.parametrize("how", ["selective", 2, 1])
@pytest.mark.parametrize("name", MODELS)
def test_less_memory_is_used_and_the_gradients_are_the_same(name: str, how: Recompute) -> None:
    usual, expected = trained(name, 0, 0.1)
    frugal, found = trained(name, how, 0.1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert frugal < AT_MOST[name][how] * usual


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_compiled_blocks_have_the_same_gradients(name: str) -> None:
    """The test has a process of its own: what is compiled stays in one."""
    alone(compare_compiled, name)


def compare_compiled(name: str) -> None:
    """Compare without dropout: compiled blocks draw other numbers."""
    _, expected = trained(name, 0, 0.0)
    for how in AT_MOST[name]:
        _, found = trained(name, how, 0.0, compiled=True)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_nothing_is_computed_again_without_gradients() -> None:
    model = GPT2(GPT, 0.0, Computation(gradient_checkpointing=1))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for block in model.blocks:
        assert isinstance(block, RecomputedBlock)
        block.attention.register_forward_hook(count)
    with torch.no_grad():
        model(TEXTS)
    assert calls == GPT.layers
    model(TEXTS).sum().backward()
    assert calls == 3 * GPT.layers


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 0), (("--gradient-checkpointing",), 1), (("--use-gradient-checkpointing", "3"), 3),
        (("--gradient-checkpointing", "selective"), "selective"), (("--no-gradient-checkpointing",), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Gpt2Options, TextOptions, VisionOptions])
def test_the_option(kind: type, words: tuple[str, ...], expected: Recompute) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    assert values_given(parser.parse_args(words), kind).get("gradient_checkpointing", 0) == expected


def test_models_of_timm_know_all_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1, 1)
    model.set_grad_checkpointing = lambda: None  # type: ignore[assignment]  # as timm's models have
    timm = SimpleNamespace(create_model=lambda *_, **__: model)
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]  # what is used of it
    shape = ClassifierShape(model="timm:any", image_size=32, channels=3, classes=5)
    assert build(shape, checkpointing=1) is model
    with pytest.raises(OptionError, match="--gradient-checkpointing selective: timm's models know no other than all"):
        build(shape, checkpointing="selective")


def test_the_forecast_of_memory_knows_each_way() -> None:
    usual = TransformerTraining(
        parameters=10_000_000, layers=12, width=768, seq_len=1024, vocab_size=50, micro_batch=4, passes=1,
        loss_chunk=1024, optimizer_values=20_000_000,
    )  # fmt: skip

    def activations(how: Recompute) -> int:
        training = replace(usual, gradient_checkpointing=how)
        return forecast_memory(training, ranks=1, world_size=1, first=True).parts["activations"]

    saved = {how: activations(how) / activations(0) for how in ("selective", 3, 2, 1)}
    assert saved == {
        "selective": pytest.approx(0.71, abs=0.03), 3: pytest.approx(0.77, abs=0.03), 2: pytest.approx(0.6, abs=0.03),
        1: pytest.approx(0.14, abs=0.03),
    }  # fmt: skip
    ways = [way.gradient_checkpointing for way in smaller(usual)]
    assert ways[-2:] == [2, 1]
    assert words_of(usual, replace(usual, gradient_checkpointing=2)) == ("--gradient-checkpointing", "2")
    assert words_of(usual, replace(usual, gradient_checkpointing=1)) == ("--gradient-checkpointing",)
