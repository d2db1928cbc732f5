"""Writing with a cache: the same tokens as without, in less time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.trainer.late_device import NAME, late_device
from trainer.models.gpt2 import ENDED_LOOK_EVERY, GPT2, Gpt2Shape, Sampling, choose, generate

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=8, vocab_size=50)
LIKELIEST = Sampling(temperature=0)


def a_model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(SHAPE, dropout=0.5).double()


@torch.no_grad()
def without_cache(model: GPT2, prompts: Tensor, count: int) -> Tensor:
    """Every token of the window is read again each time; the window slides as `generate` says."""
    model.eval()
    tokens, start = prompts, max(0, prompts.shape[1] - SHAPE.seq_len)
    for _ in range(count):
        if tokens.shape[1] - start > SHAPE.seq_len:
            start = tokens.shape[1] - SHAPE.seq_len // 2
        likeliest = model(tokens[:, start:])[:, -1].argmax(1, keepdim=True)
        tokens = torch.cat([tokens, likeliest], 1)
    return tokens[:, prompts.shape[1] :]


@torch.no_grad()
def test_logits_with_a_cache_are_those_without() -> None:
    model, tokens = a_model().eval(), torch.randint(50, (3, 8))
    caches = model.caches(3)
    found = [model.next_logits(tokens[:, :3], caches)]
    found += [model.next_logits(tokens[:, at : at + 1], caches) for at in range(3, 8)]
    torch.testing.assert_close(torch.stack(found, 1), model(tokens)[:, 2:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 8, 11])
def test_far_beyond_the_window_the_tokens_are_those_without_a_cache(length: int) -> None:
    model, prompts = a_model(), torch.randint(50, (3, length))
    assert torch.equal(generate(model, prompts, 30, LIKELIEST, seed=1), without_cache(a_model(), prompts, 30))


def test_each_prompt_of_a_batch_is_continued_as_alone() -> None:
    model, prompts = a_model(), torch.randint(50, (3, 4))
    alone = [generate(model, prompt[None], 12, LIKELIEST, seed=1) for prompt in prompts]
    assert torch.equal(generate(model, prompts, 12, LIKELIEST, seed=1), torch.cat(alone))


def test_the_text_depends_on_the_seed_and_the_model_trains_on() -> None:
    model, prompts = a_model().train(), torch.tensor([[1, 2]])

    def write(seed: int) -> list[int]:
        return generate(model, prompts, 20, Sampling(), seed)[0].tolist()

    assert len(write(1)) == 20
    assert write(1) == write(1) != write(2)
    assert model.training


def test_each_text_ends_at_its_end_token_and_all_when_the_last_has_ended() -> None:
    model, prompts = a_model(), torch.randint(50, (3, 4), generator=torch.Generator().manual_seed(3))
    whole = generate(model, prompts, 40, Sampling(), seed=2).tolist()
    last = [max(row.index(token) for row in whole) if all(token in row for row in whole) else 99 for token in range(50)]
    end = min(range(50), key=last.__getitem__)
    assert last[end] < 39  # so that there is something to leave out
    cut = generate(model, prompts, 40, Sampling(), seed=2, end=end).tolist()
    assert {len(row) for row in cut} == {last[end] + 1}
    for row, full in zip(cut, whole, strict=True):
        own = full.index(end)
        assert row[: own + 1] == full[: own + 1]
        assert set(row[own:]) == {end}


def test_tokens_are_drawn_as_torch_draws_them() -> None:
    """The same as `torch.multinomial`, which a GPU would have to be waited for."""
    logits = torch.randn(64, 50)
    found = choose(logits, Sampling(top_k=20), torch.Generator().manual_seed(5))
    likeliest = torch.topk(logits, 20)
    drawn = torch.multinomial(likeliest.values.softmax(1), 1, generator=torch.Generator().manual_seed(5))
    assert torch.equal(found, likeliest.indices.gather(1, drawn))


def test_a_device_is_waited_for_once_in_many_tokens() -> None:
    model, prompts = a_model(), torch.randint(49, (2, 3))
    expected = generate(model, prompts, ENDED_LOOK_EVERY, LIKELIEST, seed=1, end=49)
    with late_device(within=generate) as waits:
        model, prompts, logits = model.to(NAME), prompts.to(NAME), torch.randn(2, 9).to(NAME)
        waits.raises = True
        written = generate(model, prompts, ENDED_LOOK_EVERY - 1, LIKELIEST, seed=1, end=49)
        chosen = choose(logits, Sampling(top_p=0.9), torch.Generator())
        with pytest.raises(AssertionError, match="waits for the device"):
            generate(model, prompts, ENDED_LOOK_EVERY, LIKELIEST, seed=1, end=49)
        waits.raises = False
        assert written.tolist() == expected[:, :-1].tolist()
        assert chosen.device.type == NAME


def test_work_with_a_cache_does_not_grow_with_what_was_written() -> None:
    """Counted in tokens that pass through the model, not in seconds: a prompt of 4 and one for each token after it."""
    torch.manual_seed(0)
    model = GPT2(Gpt2Shape(layers=1, heads=2, width=16, seq_len=64, vocab_size=50))
    read = 0

    def count(_module: object, arguments: tuple[Tensor, ...]) -> None:
        nonlocal read
        read += arguments[0].shape[1]

    model.blocks[0].register_forward_pre_hook(count)
    generate(model, torch.randint(50, (1, 4)), 60, LIKELIEST, seed=1)
    assert read == 4 + 59


def drawn(choice: Sampling) -> dict[int, float]:
    """Count how often each token is chosen where their probabilities are 0.5, 0.3, 0.15 and 0.05."""
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(4000, 4)
    found = Counter(choose(logits, choice, torch.Generator().manual_seed(0))[:, 0].tolist())
    return {token: count / 4000 for token, count in sorted(found.items())}


def test_top_k_top_p_and_temperature_cut_and_sharpen() -> None:
    assert drawn(Sampling()) == pytest.approx({0: 0.15, 1: 0.5, 2: 0.05, 3: 0.3}, abs=0.03)
    assert drawn(Sampling(top_k=2)) == pytest.approx({1: 0.625, 3: 0.375}, abs=0.03)
    assert drawn(Sampling(top_k=99)) == drawn(Sampling())
    # Up to that token with which the sum reaches P: 0.5 + 0.3 does, not yet 0.5.
    assert drawn(Sampling(top_p=0.7)) == pytest.approx({1: 0.625, 3: 0.375}, abs=0.03)
    assert drawn(Sampling(top_p=0.1)) == {1: 1.0}
    total = math.sqrt(0.5) + math.sqrt(0.3)
    assert drawn(Sampling(top_k=2, temperature=2))[3] == pytest.approx(math.sqrt(0.3) / total, abs=0.03)
    assert drawn(LIKELIEST) == {1: 1.0}
