"""Computation of GPT-2: with checkpointing, in chunks, by one kernel or another, it is the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.engine.hardware.attention import attention_by, must_have_kernel
from trainer.errors import OptionError
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape
from trainer.models.token_loss import CHUNK, WholeTokenLoss, chunk_for, token_loss

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=12, vocab_size=50)
PLAIN = Computation(loss_chunk=0)


def loss_and_gradients(computation: Computation, dropout: float = 0.0) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = GPT2(SHAPE, dropout, computation).double()
    tokens = torch.randint(50, (3, 13))
    loss = model(tokens[:, :-1], tokens[:, 1:])
    (loss / 36).backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("chunk", [1, 5, 36, 1000])
def test_a_loss_in_chunks_is_the_plain_one_with_its_gradients(chunk: int) -> None:
    plain, gradients = loss_and_gradients(PLAIN)
    chunked, same = loss_and_gradients(replace(PLAIN, loss_chunk=chunk))
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(same, gradients, rtol=1e-10, atol=1e-12)


def test_gradient_checkpointing_changes_no_gradient() -> None:
    plain, gradients = loss_and_gradients(PLAIN, dropout=0.3)
    again, same = loss_and_gradients(replace(PLAIN, gradient_checkpointing=True), dropout=0.3)
    assert torch.equal(again, plain)
    torch.testing.assert_close(same, gradients, rtol=1e-12, atol=1e-14)


def test_gradient_checkpointing_keeps_less_for_the_backward_pass() -> None:
    def saved(computation: Computation) -> int:
        torch.manual_seed(0)
        model = GPT2(replace(SHAPE, layers=8), 0.0, computation)
        saved_bytes = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved_bytes
            saved_bytes += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(torch.randint(50, (3, 12)), torch.randint(50, (3, 12)))
        return saved_bytes

    assert saved(replace(PLAIN, gradient_checkpointing=True)) < saved(PLAIN) / 3


@pytest.mark.slow
def test_compiled_the_chunks_are_one_operator_of_one_graph_with_the_same_bits() -> None:
    compiled = torch.compile(token_loss, backend="aot_eager", fullgraph=True)
    hidden, weight = torch.randn(30, 8), torch.randn(100, 8)
    following = torch.randint(100, (30,), generator=torch.Generator().manual_seed(1))
    found = []
    for compute in (token_loss, compiled):
        given = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = compute(*given, following, 8)
        (loss * 0.5).backward()
        found.append((loss.detach(), *(one.grad for one in given)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    with torch.no_grad():
        assert torch.equal(compiled(hidden, weight, following, 8), found[0][0])


def test_a_loss_in_chunks_under_autocast_is_near_that_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    following = torch.randint(50, (20,))
    exact = F.cross_entropy(hidden @ weight.T, following, reduction="sum")
    exact.backward()
    wanted = [part.grad.clone() for part in (hidden, weight) if part.grad is not None]
    hidden.grad = weight.grad = None
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss(hidden, weight, following, chunk=8)
    loss.backward()
    torch.testing.assert_close(loss, exact, rtol=1e-2, atol=0)
    for found, expected in zip((hidden.grad, weight.grad), wanted, strict=True):
        assert found is not None
        assert found.dtype == torch.float32
        assert (found - expected).norm() < 0.02 * expected.norm()


def test_without_gradients_only_the_loss_is_computed() -> None:
    hidden, weight = torch.randn(6, 4), torch.randn(9, 4, requires_grad=True)
    following = torch.randint(9, (6,))
    with torch.no_grad():
        loss = token_loss(hidden, weight, following, chunk=4)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, following, reduction="sum").detach())


def test_chunks_by_itself_on_a_cpu_and_where_a_gpu_is_small() -> None:
    gib = 2**30
    assert chunk_for(1024, 50257, gpu_memory=0) == CHUNK
    assert chunk_for(4 * 1024, 50257, gpu_memory=4 * gib) == CHUNK
    assert chunk_for(16 * 1024, 50257, gpu_memory=80 * gib) == 0
    assert chunk_for(64 * 1024, 50257, gpu_memory=80 * gib) == CHUNK
    assert chunk_for(64 * 1024, 50257, gpu_memory=80 * gib, compiled=True) == 0


def test_compiled_the_whole_loss_is_one_graph_with_the_same_gradients() -> None:
    """The same graph as on a GPU. Unlike in chunks, no weight is stored beside it: names in a checkpoint stay."""
    assert not [name for name in GPT2(SHAPE).state_dict() if name.startswith("loss")]
    compiled = torch.compile(WholeTokenLoss(), backend="aot_eager", fullgraph=True)
    hidden, weight, following = torch.randn(5, 6, 8), torch.randn(50, 8), torch.randint(50, (5, 6))
    found = []
    for compute in (WholeTokenLoss(), compiled):
        given = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = compute(*given, following)
        (loss * 0.5).backward()
        found.append((loss.detach(), *(one.grad for one in given)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-2, atol=1e-2)


def test_attention_kernels_agree() -> None:
    plain, gradients = loss_and_gradients(PLAIN)
    for kernel in ("flash", "math"):
        with attention_by(kernel, same_shapes=True):
            found, same = loss_and_gradients(replace(PLAIN, gradient_checkpointing=int(kernel == "math")))
        torch.testing.assert_close(found, plain, rtol=1e-10, atol=0)
        torch.testing.assert_close(same, gradients, rtol=1e-8, atol=1e-10)


def test_a_kernel_missing_on_a_cpu_is_refused() -> None:
    must_have_kernel("math", "cpu")
    must_have_kernel("cudnn", "cuda")
    with pytest.raises(OptionError, match="--sdpa cudnn: a CPU has only auto, flash, math"):
        must_have_kernel("cudnn", "cpu")
