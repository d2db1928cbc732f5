"""GPT-2 against `GPT2LMHeadModel` of transformers with the same weights: logits, loss, every gradient, generation."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from tests.trainer.references.conftest import Agrees
from tests.trainer.references.deviation import largest, relative
from trainer.data.tokenizer import train_bpe
from trainer.models import pretrained_gpt2
from trainer.models.gpt2 import GPT2, Computation, Sampling, generate

REFERENCE = "transformers GPT2LMHeadModel"
VOCABULARY = 1001
"""Size that is no multiple of 64: the output layer is padded."""
TOKENS = torch.randint(VOCABULARY, (3, 49), generator=torch.Generator().manual_seed(1))
COMPUTATIONS = {
    "whole loss": Computation(loss_chunk=0),
    "chunks of 32": Computation(loss_chunk=32),
    "uneven chunks of 50": Computation(loss_chunk=50),
    "checkpointing": Computation(gradient_checkpointing=1, loss_chunk=0),
    "every second block, chunks": Computation(gradient_checkpointing=2, loss_chunk=32),
    "selective checkpointing": Computation(gradient_checkpointing="selective", loss_chunk=0),
}


@pytest.fixture(scope="module")
def theirs() -> GPT2LMHeadModel:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 48, "n_embd": 64, "n_layer": 3, "n_head": 4}
    chance = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, **chance, bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start at 0 and 1, where a mix-up would not show
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def named_as_ours(model: GPT2LMHeadModel, folder: Path) -> dict[str, Tensor]:
    model.save_pretrained(folder)
    return pretrained_gpt2.weights_of(str(folder), pretrained_gpt2.shape_of(str(folder)))


def ours_of(theirs: GPT2LMHeadModel, folder: Path, computation: Computation) -> GPT2:
    weights = named_as_ours(theirs, folder)
    model = GPT2(pretrained_gpt2.shape_of(str(folder)), computation=computation)
    model.load_state_dict(weights)
    return model.train()


def their_loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="sum")


def their_gradients(theirs: GPT2LMHeadModel, folder: Path) -> dict[str, Tensor]:
    graded = copy.deepcopy(theirs)
    for parameter, own in zip(graded.parameters(), theirs.parameters(), strict=True):
        assert own.grad is not None
        parameter.data = own.grad
    return named_as_ours(graded, folder)


def gradients(model: GPT2) -> dict[str, Tensor]:
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_logits_loss_and_gradients(computation: str, theirs: GPT2LMHeadModel, tmp_path: Path, agrees: Agrees) -> None:
    ours = ours_of(theirs, tmp_path / "theirs", COMPUTATIONS[computation])
    theirs.zero_grad()
    expected = theirs(TOKENS[:, :-1]).logits
    expected_loss = their_loss(expected)
    expected_loss.backward()
    loss = ours(TOKENS[:, :-1], TOKENS[:, 1:])
    loss.backward()
    # Measured: 2.5e-7, 6.1e-8, 4.5e-7.
    agrees(
        f"GPT-2, {computation}", REFERENCE,
        logits=(relative(ours(TOKENS[:, :-1]), expected), 3e-6),
        loss=(relative(loss, expected_loss), 1e-6),
        gradients=(largest(gradients(ours), their_gradients(theirs, tmp_path / "gradients")), 5e-6),
    )  # fmt: skip


@pytest.mark.parametrize("computation", ["whole loss", "chunks of 32"])
def test_under_bfloat16_the_error_is_as_large_as_theirs(
    computation: str, theirs: GPT2LMHeadModel, tmp_path: Path, agrees: Agrees
) -> None:
    theirs.zero_grad()
    their_loss(theirs(TOKENS[:, :-1]).logits).backward()
    exact = their_gradients(theirs, tmp_path / "exact")
    theirs.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logits = theirs(TOKENS[:, :-1]).logits
    their_loss(logits).backward()
    their_error = relative(their_gradients(theirs, tmp_path / "low")["tokens.weight"], exact["tokens.weight"])
    ours = ours_of(theirs, tmp_path / "theirs", COMPUTATIONS[computation])
    with torch.autocast("cpu", torch.bfloat16):
        loss = ours(TOKENS[:, :-1], TOKENS[:, 1:])
    loss.backward()
    error = relative(gradients(ours)["tokens.weight"], exact["tokens.weight"])
    # Measured: 6.2e-3 both ways, and theirs 6.4e-3.
    what = f"GPT-2 in bfloat16, {computation}"
    agrees(what, f"float32 (theirs: {their_error:.1e})", gradient=(error, 1.2 * their_error))


def test_greedy_generation(theirs: GPT2LMHeadModel, tmp_path: Path, agrees: Agrees) -> None:
    ours = ours_of(theirs, tmp_path, Computation())
    found = generate(ours, TOKENS[:, :5], 40, Sampling(temperature=0), seed=1)
    expected = copy.deepcopy(theirs).eval().generate(
        TOKENS[:, :5], attention_mask=torch.ones(3, 5), max_new_tokens=40, do_sample=False, pad_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    different = float((found != expected[:, 5:]).sum())
    agrees("GPT-2, 3 × 40 greedy tokens with a cache", "transformers generate", tokens=(different, 0))


def test_exported_weights(theirs: GPT2LMHeadModel, tmp_path: Path, agrees: Agrees) -> None:
    ours, tokenizer = ours_of(theirs, tmp_path / "theirs", Computation()).eval(), tmp_path / "tokenizer.json"
    train_bpe(["En el principio era la palabra."], 300).save(str(tokenizer))
    pretrained_gpt2.export(ours, tokenizer, tmp_path / "exported")
    exported = GPT2LMHeadModel.from_pretrained(tmp_path / "exported").double().eval()
    with torch.no_grad():
        deviation = relative(ours.double()(TOKENS[:, :-1]), exported(TOKENS[:, :-1]).logits)
    agrees("GPT-2, exported, float64", REFERENCE, logits=(deviation, 1e-14))  # measured: 6.5e-16
