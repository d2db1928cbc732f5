"""The kernel of attention is the fastest of those that can compute what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config import TrainOptions
from trainer.engine.hardware.attention import (
    AttentionCall,
    AttentionKernels,
    AttentionSeen,
    Timer,
    fastest,
    trials,
)
from trainer.engine.setup import choose_attention
from trainer.models.encoder import Dropout, Encoder, EncoderShape
from trainer.models.gpt2 import GPT2, Gpt2Shape
from trainer.workloads.gpt2 import Gpt2
from trainer.workloads.text import Text

CPU = torch.device("cpu")
CALL = AttentionCall(query=(2, 2, 8, 4), key=(2, 2, 8, 4), value=(2, 2, 8, 4), dtype=torch.float32, causal=True)


def order() -> list[SDPBackend]:
    found: list[SDPBackend] = torch_attention._cur_sdpa_kernel_backends(with_priority=True)
    return found


def timer(*times: float) -> Timer:
    """Computes once, as a real one does, and answers these milliseconds in turns."""
    left = list(times)

    def time(work: Callable[[], object]) -> float:
        work()
        left.append(left.pop(0))
        return left[-1]

    return time


def test_calls_of_a_model_are_seen_once_each_with_all_that_decides() -> None:
    gpt2 = GPT2(Gpt2Shape(layers=3, heads=2, width=16, seq_len=8, vocab_size=50), dropout=0.1)
    with AttentionSeen(torch.bfloat16) as seen, torch.no_grad():
        gpt2(torch.zeros(2, 8, dtype=torch.long))
        gpt2.eval()(torch.zeros(2, 8, dtype=torch.long))
    shape = (2, 2, 8, 8)
    trained = AttentionCall(query=shape, key=shape, value=shape, dtype=torch.bfloat16, dropout=0.1, causal=True)
    assert list(seen.calls) == [trained, AttentionCall(**{**vars(trained), "dropout": 0.0})]
    assert str(trained) == "2 x 2 x 8 x 8 causal with dropout in bfloat16"
    assert trained.times(3).query == trained.times(3).value == (6, 2, 8, 8)

    text = EncoderShape(layers=2, attention_heads=2, width=16, inner_width=32, vocab_size=50)
    with AttentionSeen(torch.float32) as seen, torch.no_grad():
        Encoder(text, 3, Dropout())(torch.ones(2, 8, dtype=torch.long), torch.ones(2, 1, 1, 8, dtype=torch.bool))
    (call,) = seen.calls
    assert (call.mask, call.mask_dtype, call.times(2).mask) == ((2, 1, 1, 8), torch.bool, (4, 1, 1, 8))


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        AttentionCall(**{**vars(CALL), "causal": False, "mask": (2, 1, 1, 8), "dropout": 0.1}),
        AttentionCall(**{**vars(CALL), "causal": False, "mask": (8, 8), "mask_dtype": torch.float32}),
        AttentionCall(**{**vars(CALL), "query": (2, 4, 6, 4), "grouped": True}),
    ],
    ids=str,
)
def test_what_is_timed_is_the_call_forward_and_backward(call: AttentionCall) -> None:
    gradients: list[Any] = []

    def keep(work: Callable[[], Any]) -> float:
        with AttentionSeen(call.dtype) as seen:
            gradients.append(work())
        assert list(seen.calls) == [call]
        return 1.0

    assert fastest([call], CPU, {"math": lambda: sdpa_kernel(SDPBackend.MATH)}, keep) == {"math": 1.0}
    assert [tuple(each.shape) for each in gradients[0]] == [call.query, call.key, call.value]


def test_the_best_of_several_rounds_counts_and_the_sum_over_shapes() -> None:
    kernels = {"one": nullcontext, "other": nullcontext}
    # Two kernels in turns, three rounds, two shapes.
    found = fastest([CALL, CALL.times(2)], CPU, kernels, timer(9, 5, 3, 5, 4, 5, 1, 1, 1, 1, 1, 1))
    assert found == {"one": 3 + 1, "other": 5 + 1}


def test_a_kernel_that_fails_is_left_out() -> None:
    """On a CPU all but one: cuDNN and the others exist for GPUs, and the packages of FA3 and FA4 are not installed."""
    assert set(trials(same_shapes=True)) == {"flash", "efficient", "cudnn", "fa3", "fa4"}
    before = order()
    assert fastest([CALL], CPU, trials(same_shapes=True), timer(2)) == {"flash": 2}
    assert order() == before
    assert torch_attention.current_flash_attention_impl() is None

    def too_large(_work: Callable[[], object]) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert fastest([CALL], CPU, trials(same_shapes=True), too_large) == {}


def test_the_fastest_comes_first_until_the_training_ends() -> None:
    before = order()
    kernels = {"math": lambda: sdpa_kernel(SDPBackend.MATH), "flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION)}
    with AttentionKernels() as attention:
        line = attention.choose([CALL], CPU, kernels, timer(1, 2))
        assert line == (
            "attention by math, for 2 x 2 x 8 x 4 causal in float32, forward and backward: math 1.00 ms, flash 2.00 ms"
        )
        assert order()[0] == SDPBackend.MATH
        assert set(order()) >= set(before)  # where it cannot compute something, another one does
        query = torch.randn(1, 2, 4, 8)
        F.scaled_dot_product_attention(query, query, query)
    assert order() == before
    with AttentionKernels() as attention:
        assert attention.choose([CALL], CPU, {"flash": nullcontext}, timer(1)) == ""
        assert attention.choose([], CPU, kernels, timer(1)) == ""
        assert order() == before


def test_cudnn_is_tried_for_one_shape_alone() -> None:
    assert "cudnn" in trials(same_shapes=True)
    assert "cudnn" not in trials(same_shapes=False)
    assert "flash" in trials(same_shapes=False)
    assert Gpt2.same_shapes
    assert not Text.same_shapes


@pytest.mark.parametrize(
    ("options", "on_gpu", "tried"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"sdpa": "flash"}, True, False),
        ({"deterministic": True}, True, False),
    ],
)
def test_only_an_open_choice_on_a_gpu_is_tried(options: dict[str, Any], on_gpu: bool, tried: bool) -> None:
    asked = []

    def calls() -> list[AttentionCall]:
        asked.append(True)
        return [CALL]

    run: Any = SimpleNamespace(
        options=TrainOptions(**options),
        hardware=SimpleNamespace(on_gpu=on_gpu, device=CPU),
        workload=SimpleNamespace(same_shapes=True),
        attention=AttentionKernels(),
        events=SimpleNamespace(say=pytest.fail),  # as one kernel alone is no choice
    )
    bench: Any = SimpleNamespace(attention_calls=calls)
    choose_attention(run, bench, timer(1))
    assert bool(asked) is tried
