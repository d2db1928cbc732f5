"""Counts of a GPT-2 step's kernels and bytes without a GPU, and its CPU time by operator."""

from __future__ import annotations

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import gpu_estimate, operators
from benchmarks.gpu_estimate import OPTIMIZER_KERNELS, counts, loss_arguments, seconds_of, uncompiled
from trainer.models.gpt2 import Gpt2Shape
from trainer.models.token_loss import token_loss

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=32, vocab_size=1000)


def test_an_uncompiled_loss_moves_its_logits_many_times() -> None:
    def loss_of(tokens: int) -> gpu_estimate.Counts:
        with FakeTensorMode():
            return uncompiled(lambda: token_loss(*loss_arguments(SHAPE, tokens)))

    few, many = loss_of(64), loss_of(128)
    assert few.kernels == many.kernels > 10
    logits = 64 * SHAPE.vocab_size
    assert 30 * logits < many.bytes - few.bytes < 60 * logits


def test_a_loss_in_chunks_has_more_kernels_but_moves_fewer_bytes() -> None:
    """Each chunk has kernels of its own, so even one chunk has more than all tokens at once."""

    def loss_of(chunk: int) -> gpu_estimate.Counts:
        with FakeTensorMode():
            return uncompiled(lambda: token_loss(*loss_arguments(SHAPE, 256), chunk))

    whole, one, two, four = (loss_of(chunk) for chunk in (0, 256, 128, 64))
    assert whole.kernels < one.kernels < two.kernels
    assert four.kernels - two.kernels == 2 * (two.kernels - one.kernels)
    assert max(one.bytes, two.bytes, four.bytes) < whole.bytes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiled_a_step_has_fewer_kernels_and_bytes() -> None:
    (found,) = counts(SHAPE, [16])
    plain, blocks, chunks, whole = found.values()
    assert chunks.kernels > blocks.kernels
    assert plain.kernels > blocks.kernels > whole.kernels > OPTIMIZER_KERNELS
    assert plain.bytes > blocks.bytes > chunks.bytes > whole.bytes
    assert seconds_of(SHAPE, 16, plain) > seconds_of(SHAPE, 16, whole)


def test_operators_of_both_models_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert operators.main(["--quick"]) == 0
    output = capsys.readouterr().out
    assert "| aten::mm |" in output
    assert output.count("\n| ours ") == 1
    assert "padded once" in output
