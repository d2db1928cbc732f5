"""Our GPT-2 and that of `transformers`: the same weights in both directions, and what is refused. That both compute the
same is proved in references/."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from trainer.data.tokenizer import train_bpe
from trainer.errors import ConfigurationError
from trainer.models import pretrained_gpt2
from trainer.models.gpt2 import GPT2, Gpt2Shape

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=12, vocab_size=300)
TEXTS = ["En el principio era la palabra, y la palabra vino con ella.", "¿Qué vino? Toda cosa."]


def a_tokenizer() -> Tokenizer:
    return train_bpe(TEXTS, 300)


def their_model(**settings: object) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **settings})).eval()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder as people get it from the hub."""
    folder = tmp_path / "theirs"
    their_model().save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=a_tokenizer()).save_pretrained(folder)
    return folder


def test_there_and_back_no_bit_is_lost(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours, file = GPT2(SHAPE), tmp_path / "tokenizer.json"
    a_tokenizer().save(str(file))
    pretrained_gpt2.export(ours, file, tmp_path / "folder")
    shape = pretrained_gpt2.shape_of(str(tmp_path / "folder"))
    back = pretrained_gpt2.weights_of(str(tmp_path / "folder"), shape)
    assert shape == SHAPE
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[name], weight) for name, weight in ours.state_dict().items())
    pretrained_gpt2.must_be_the_datas(str(tmp_path / "folder"), shape, a_tokenizer(), tmp_path)
    text = "¿Qué era la palabra?"
    assert AutoTokenizer.from_pretrained(tmp_path / "folder")(text)["input_ids"] == a_tokenizer().encode(text).ids


def test_fewer_positions_are_the_first_ones(theirs: Path) -> None:
    shape = pretrained_gpt2.shape_of(str(theirs), seq_len=5)
    positions = pretrained_gpt2.weights_of(str(theirs), shape)["positions.weight"]
    assert torch.equal(positions, their_model().state_dict()["transformer.wpe.weight"][:5])
    with pytest.raises(ConfigurationError, match="it has 12 positions, too few for --seq-len 13"):
        pretrained_gpt2.shape_of(str(theirs), seq_len=13)


def test_a_model_that_computes_otherwise_is_refused_with_all_that_differs(tmp_path: Path) -> None:
    their_model(activation_function="relu", scale_attn_by_inverse_layer_idx=True).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        pretrained_gpt2.shape_of(str(tmp_path))
    assert "activation_function is 'relu', and it must be 'gelu_new' or 'gelu_pytorch_tanh'" in str(refused.value)
    assert "scale_attn_by_inverse_layer_idx is True, and it must be False" in str(refused.value)


def test_a_name_that_the_hub_does_not_give_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match=r"hf download someone/gpt2-spanish --local-dir FOLDER") as refused:
        pretrained_gpt2.shape_of("someone/gpt2-spanish")
    assert str(refused.value).startswith("someone/gpt2-spanish is no folder here, and from the hub it did not come")


def test_data_of_another_tokenizer_is_refused(theirs: Path, tmp_path: Path) -> None:
    other = train_bpe(["palabras muy distintas de aquellas"], 300)
    with pytest.raises(ConfigurationError, match=f"gpt2 prepare --tokenizer {theirs} --text"):
        pretrained_gpt2.must_be_the_datas(str(theirs), SHAPE, other, tmp_path)


def test_a_tokenizer_that_cannot_end_a_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(a_tokenizer().to_str().replace("<|endoftext|>", "<s>"), "utf-8")
    with pytest.raises(ConfigurationError, match=r"a tokenizer without the token <\|endoftext\|>"):
        pretrained_gpt2.tokenizer_of(str(file))
