"""Texts one after the other give on a GPU what padded ones give on a CPU."""

from __future__ import annotations

import pytest
import torch

from trainer.models.encoder import Dropout, Encoder, EncoderShape
from trainer.models.packed import Packed, attend, by_length, nested

SHAPE = EncoderShape(layers=3, attention_heads=4, width=64, inner_width=128, vocab_size=50, positions=40)
NONE = Dropout(hidden=0.0, attention=0.0, head=0.0)


def a_row() -> tuple[torch.Tensor, Packed]:
    lengths = [1, 3, 3, 7, 20]
    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
    places = torch.cat([torch.arange(length) for length in lengths])
    tokens = torch.randint(3, 50, (34,), generator=torch.Generator().manual_seed(0))
    return tokens, Packed(places, bounds[:-1].long(), bounds, 30)


def on_gpu(packed: Packed) -> Packed:
    return Packed(packed.places.cuda(), packed.starts.cuda(), packed.bounds.cuda(), packed.longest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", [attend, nested])
def test_attention_is_the_cpus(way: object, dtype: torch.dtype) -> None:
    """Attention by varlen and by nested tensors, forward and backward."""
    assert callable(way)
    _, packed = a_row()
    torch.manual_seed(0)
    parts = [torch.randn(34, 4, 16).to(dtype).float().requires_grad_() for _ in range(3)]
    expected = by_length(parts[0], parts[1], parts[2], packed, 0.0)
    expected.sum().backward()
    given = [part.detach().to("cuda", dtype).requires_grad_() for part in parts]
    found = way(*given, on_gpu(packed), 0.0)
    found.float().sum().backward()
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.float().cpu(), expected.detach(), rtol=tolerance, atol=tolerance)
    for one, other in zip(given, parts, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad.float().cpu(), other.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_drawn_and_repeated_by_its_seed(dtype: torch.dtype) -> None:
    _, packed = a_row()
    parts = [torch.randn(34, 4, 16, device="cuda", dtype=dtype) for _ in range(3)]
    found = []
    for dropout in (0.0, 0.5, 0.5):
        torch.manual_seed(1)
        found.append(attend(parts[0], parts[1], parts[2], on_gpu(packed), dropout))
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("compiled", [False, True])
def test_logits_are_the_cpus_and_the_gpu_is_not_waited_for(compiled: bool, request: pytest.FixtureRequest) -> None:
    from trainer.engine.hardware.compiling import compile_in_place

    tokens, packed = a_row()
    torch.manual_seed(0)
    model = Encoder(SHAPE, 6, NONE)
    expected = model(tokens, packed).detach()
    model.cuda()
    if compiled:
        request.getfixturevalue("compiler")
        assert not compile_in_place(model, torch.device("cuda"))
    given, among = tokens.cuda(), on_gpu(packed)
    with torch.autocast("cuda", torch.bfloat16):
        model(given, among).sum().backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = model(given, among)
            found.sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.detach().float().cpu(), expected, rtol=5e-2, atol=5e-2)
