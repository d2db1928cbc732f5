"""Codecs that replace float32: length, error, and that nothing is lost in the long run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.engine.sync.codec import CHUNK, BlockCodec, Codec, FloatCodec, HalfCodec, SparseCodec

CODECS: list[Codec] = [
    FloatCodec(), HalfCodec(), BlockCodec(8), BlockCodec(4), BlockCodec(2), SparseCodec(1 / 64), SparseCodec(0.1),
]  # fmt: skip
LOSSY = CODECS[1:]
each = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
each_lossy = pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.name)
numbers = st.lists(st.floats(-(2.0**99), 2.0**99, width=32), max_size=700).map(lambda given: torch.tensor(given))


def normal(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def there_and_back(codec: Codec, values: Tensor) -> Tensor:
    payload = codec.encode(values)
    assert (payload.dtype, payload.shape) == (torch.uint8, (codec.payload_bytes(len(values)),))
    decoded = codec.decode(payload, len(values))
    assert (decoded.dtype, decoded.shape) == (torch.float32, values.shape)
    return decoded


@each
@given(values=numbers)
def test_what_is_lost_is_less_than_there_was(codec: Codec, values: Tensor) -> None:
    """The bound holds in every length, however unlike the values are: so error feedback cannot run away."""
    lost = values.double() - there_and_back(codec, values).double()
    assert lost.norm() <= values.double().norm() * (1 + 1e-6)


@each
@pytest.mark.parametrize("count", [0, 1, 2, 3, 255, 256, 257, 513, CHUNK - 1, CHUNK + 1, 2 * CHUNK + 77])
def test_lengths_that_are_no_multiple_of_a_block(codec: Codec, count: int) -> None:
    values = normal(count)
    lost = values - there_and_back(codec, values)
    assert lost.norm() <= 0.99 * values.norm()


@each
def test_zeros_stay_zeros(codec: Codec) -> None:
    assert there_and_back(codec, torch.zeros(1000)).eq(0).all()


@each
@pytest.mark.parametrize("count", [1, 64, 1000, 1537])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nan_never_passes_for_a_number(codec: Codec, count: int, bad: float) -> None:
    for place in {0, count // 2, count - 1}:
        values = normal(count)
        values[place] = bad
        assert not there_and_back(codec, values)[place].isfinite()


@each_lossy
@pytest.mark.parametrize("huge", [1e-45, 1e-39, 1e-37, 1e30, 3.4e38])
def test_numbers_at_the_ends_of_the_range(codec: Codec, huge: float) -> None:
    values = torch.tensor([huge, -huge, huge / 2, 0.0])
    decoded = there_and_back(codec, values)
    if huge < 1e38:  # beyond, a sum over a block may overflow, which is not hidden
        assert (values - decoded).norm(torch.inf) <= huge


@each_lossy
def test_the_sum_of_what_is_sent_follows_the_sum_of_what_was_given(codec: Codec) -> None:
    """Error feedback: what is still owed does not grow with the number of steps."""
    steps, count = 400, 1000
    owed, given_in_all, sent_in_all = torch.zeros(count), torch.zeros(count), torch.zeros(count)
    uneven = torch.logspace(-3, 0, count)
    owed_after = []
    for step in range(steps):
        gradient = normal(count, seed=step) * uneven + 0.1 * uneven
        given_in_all += gradient
        sent = there_and_back(codec, gradient + owed)
        owed += gradient - sent
        sent_in_all += sent
        owed_after.append(owed.norm().item())
    torch.testing.assert_close(sent_in_all + owed, given_in_all, rtol=1e-4, atol=1e-3)
    assert owed_after[-1] < 1.5 * max(owed_after[:200])


@each
def test_the_same_values_give_the_same_payload(codec: Codec) -> None:
    values = normal(3000)
    assert codec.encode(values.clone()).equal(codec.encode(values))


@each
def test_a_payload_may_lie_anywhere_in_a_buffer(codec: Codec) -> None:
    """Chunks of several ranks stand one after another in one tensor, also at odd addresses."""
    values = normal(333)
    payload = codec.encode(values)
    buffer = torch.cat((torch.zeros(1, dtype=torch.uint8), payload))
    assert codec.decode(buffer[1:], 333).equal(codec.decode(payload, 333))


def test_fp32_is_the_identity() -> None:
    assert there_and_back(FloatCodec(), normal(100)).equal(normal(100))


def test_fp16_holds_what_is_too_large_at_its_largest() -> None:
    assert there_and_back(HalfCodec(), torch.tensor([1e9, -1e9, 1.5])).tolist() == [65504.0, -65504.0, 1.5]


@pytest.mark.parametrize(("bits", "last"), [(8, 127), (4, 7)])
@given(values=numbers)
def test_no_value_is_further_off_than_half_a_level(bits: int, last: int, values: Tensor) -> None:
    lost = values.double() - there_and_back(BlockCodec(bits, block=1000), values).double()
    largest = values.abs().max().item() if len(values) else 0.0
    assert lost.abs().le(largest / last * (0.5 + last / 256) + 1e-36).all()


@pytest.mark.parametrize(("bits", "least"), [(8, 0.012), (4, 0.13), (2, 0.35)])
def test_error_on_normal_values_is_near_the_least_for_so_many_bits(bits: int, least: float) -> None:
    values = normal(100_000)
    lost = values - there_and_back(BlockCodec(bits), values)
    assert lost.norm() < least * values.norm()


def test_two_bits_give_the_four_levels() -> None:
    values = torch.tensor([-10.0, -2.0, 2.0, 10.0] * 16)
    levels = there_and_back(BlockCodec(2), values)
    assert levels[:4].tolist() == [-11.25, -3.75, 3.75, 11.25]


def test_topk_keeps_the_largest_of_each_block() -> None:
    values = normal(512) * 0.01
    values[[3, 200]] = torch.tensor([5.0, -7.0])
    values[[256, 511]] = torch.tensor([-7.0, 7.0])
    decoded = there_and_back(SparseCodec(2 / 256), values)
    assert sorted(decoded.nonzero().flatten().tolist()) == [3, 200, 256, 511]
    torch.testing.assert_close(decoded[[3, 200, 256, 511]], torch.tensor([5.0, -7.0, -7.0, 7.0]))


def test_sizes_in_bits_of_a_million_values() -> None:
    bits = {codec.name: codec.payload_bytes(1 << 20) * 8 / (1 << 20) for codec in CODECS[:5]}
    assert bits == {"fp32": 32, "fp16": 16, "int8": 8.125, "int4": 4.25, "int2": 2.125}
    assert SparseCodec(1 / 64).payload_bytes(1 << 20) * 8 / (1 << 20) == pytest.approx(0.1914, abs=1e-4)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="3 bits"):
        BlockCodec(3)
    with pytest.raises(ValueError, match="density 0"):
        SparseCodec(0)
