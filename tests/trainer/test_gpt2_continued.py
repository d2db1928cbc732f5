"""GPT-2 by the command line: another's trained further here, and ours handed to `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from trainer.data.tokenizer import train_bpe

TEXT = "en el principio era la palabra y con ella vino toda cosa.\n"
FEW_STEPS = ("--max-steps", "2", "--batch-size", "4", "--eval-every", "0")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Model with a vocabulary that is larger than its tokenizer's, as padded ones are."""
    folder, tokenizer = tmp_path / "theirs", train_bpe([TEXT], 270)
    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def test_from_their_folder_to_ours_and_back(theirs, tmp_path, call, monkeypatch) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    text, data, run, back = (tmp_path / name for name in ("text.txt", "Data", "run", "back"))
    text.write_text(TEXT * 400, "utf-8")
    prepared = call("gpt2", "prepare", "--tokenizer", str(theirs), "--text", str(text), "--data-dir", str(data))
    assert prepared.code == 0, prepared.err
    options = ("--data-dir", str(data), "--run-dir", str(run), "--init-from", str(theirs), "--seq-len", "16")
    trained = call("gpt2", "train", *options, *FEW_STEPS, "--log-every", "1", "--lr", "1e-9")
    assert trained.code == 0, trained.err

    # The first loss is that of their own weights: nothing was trained yet.
    reference = GPT2LMHeadModel.from_pretrained(theirs).eval()
    tokens = torch.tensor([Tokenizer.from_file(str(theirs / "tokenizer.json")).encode(TEXT * 3).ids[:17]])
    assert trained.losses()[1] == pytest.approx(reference(tokens, labels=tokens).loss.item(), abs=0.3)

    assert call("gpt2", "export", "--checkpoint", str(run), "--to", str(back)).code == 0
    ours = GPT2LMHeadModel.from_pretrained(back)
    for name, weight in reference.state_dict().items():
        same = ours.state_dict()[name]
        torch.testing.assert_close(same, weight[:16] if name.endswith("wpe.weight") else weight, rtol=0, atol=1e-7)
    assert (
        AutoTokenizer.from_pretrained(back)(TEXT)["input_ids"]
        == AutoTokenizer.from_pretrained(theirs)(TEXT)["input_ids"]
    )


def test_data_with_another_tokenizer_cannot_continue_a_model(theirs, tmp_path, call, data_dir) -> None:
    where = ("--data-dir", str(data_dir), "--run-dir", str(tmp_path / "run"))
    refused = call("gpt2", "train", *where, "--init-from", str(theirs), "--seq-len", "16", *FEW_STEPS)
    assert refused.code == 3
    assert f"prepare --tokenizer {theirs}" in refused.err


def test_a_shape_beside_that_of_the_model_is_refused(call) -> None:
    refused = call("gpt2", "train", "--init-from", "anything", "--layers", "2")
    assert refused.code == 2
    assert "--init-from brings its own shape" in refused.err


def test_options_of_speed_and_memory_leave_the_losses_as_they_are(train, tmp_path) -> None:
    plain = train(tmp_path / "plain", *FEW_STEPS, "--loss-chunk", "0", "--precision", "fp32")
    lean = train(
        tmp_path / "lean", *FEW_STEPS, "--loss-chunk", "7", "--use-gradient-checkpointing", "--sdpa", "math",
        "--precision", "fp32",
    )  # fmt: skip
    assert (plain.code, lean.code) == (0, 0), plain.err + lean.err
    assert lean.losses() == pytest.approx(plain.losses(), rel=1e-5)


def test_several_samples_at_once(train, call, tmp_path) -> None:
    assert train(tmp_path, *FEW_STEPS).code == 0
    sample = ("gpt2", "sample", "--checkpoint", str(tmp_path), "--prompt", "en el", "--tokens", "20", "--top-p", "0.9")
    two, again = (call(*sample, "--samples", "2", "--temperature", "1").out for _ in range(2))
    first, second = two.rstrip("\n").split("\n\nen el")
    assert two == again
    assert first.startswith("en el")
    assert first.removeprefix("en el") != second
    assert "--top-p 2: expected" in call(*sample, "--top-p", "2").err
