"""Encoder: what freezing, padding and checkpointing may not change, and where its weights come from. That it
computes as `transformers` does is proved in references/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainer.data import failure_texts
from trainer.data.tokenizer import SPECIAL, train_wordpiece
from trainer.errors import ConfigurationError, OptionError
from trainer.models import pretrained
from trainer.models.encoder import Dropout, Encoder, EncoderShape
from trainer.models.layers import recompute

NONE = Dropout(hidden=0.0, attention=0.0, head=0.0)
SMALL = {"vocab_size": 50, "max_position_embeddings": 40}
BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, **SMALL}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 9, 5 and 2 tokens, and where they are."""
    tokens = torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    present = torch.arange(9) < torch.tensor([9, 5, 2])[:, None]
    return tokens.masked_fill(~present, 1), present


def stirred(model: Any) -> Any:
    """Biases and norms start at 0 and 1, where a mix-up of names would not show."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def encoder(frozen: int = 0, dropout: Dropout | None = None) -> Encoder:
    torch.manual_seed(0)
    shape = EncoderShape(layers=3, attention_heads=4, width=32, inner_width=64, vocab_size=50, positions=40)
    return Encoder(shape, 6, dropout or NONE, frozen)


def test_padding_changes_nothing() -> None:
    model = encoder().eval()
    tokens, present = batch()
    padded = model(tokens, present[:, None, None, :])
    for text, length in enumerate((9, 5, 2)):
        torch.testing.assert_close(model(tokens[text : text + 1, :length])[0], padded[text], rtol=1e-5, atol=1e-5)


def test_frozen_layers_have_no_dropout_and_get_no_gradient() -> None:
    model = encoder(frozen=2, dropout=Dropout(hidden=0.5, attention=0.5, head=0.5))
    model.train()
    tokens, _ = batch()
    assert torch.equal(model.embed(tokens, None), model.embed(tokens, None))
    assert not torch.equal(model(tokens), model(tokens))
    model(tokens).sum().backward()
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {"layers", "pool", "heads"}
    assert {name.split(".")[1] for name, p in model.named_parameters() if p.grad is not None} >= {"2"}
    assert all(p.grad is None for module in model.frozen_modules() for p in module.parameters())


@pytest.mark.parametrize("frozen", [0, 1])
def test_checkpointed_layers_keep_less_and_give_the_same_gradients(frozen: int) -> None:
    """Dropout's noise too is made again, as it was."""
    tokens, present = batch()
    found, saved = [], []
    for how in (0, 1):
        model = encoder(frozen=frozen, dropout=Dropout(hidden=0.3, attention=0.3, head=0.3)).train()
        recompute(model.layers[frozen:], how)
        torch.manual_seed(3)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            loss = model(tokens, present[:, None, None, :]).square().sum()
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        saved.append(sum(sizes))
    torch.testing.assert_close(found[1], found[0])
    assert saved[1] < 0.5 * saved[0]


def test_what_frozen_layers_make_of_a_text_can_take_its_place() -> None:
    model = encoder(frozen=2)
    tokens, present = batch()
    mask = present[:, None, None, :]
    assert torch.equal(model(model.embed(tokens, mask), mask), model(tokens, mask))


def test_a_model_of_a_folder_is_taken_with_its_tokenizer(tmp_path: Path) -> None:
    words = [row[0] for row in failure_texts.rows(50)]
    plain = train_wordpiece(words, 300)
    marks = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **marks)
    fast.save_pretrained(tmp_path)
    config = transformers.BertConfig(**{**BERT, "vocab_size": plain.get_vocab_size()})
    theirs = stirred(transformers.BertModel(config))
    theirs.save_pretrained(tmp_path)
    found = pretrained.load(str(tmp_path))
    assert found.tokenizer.encode(words[0]).ids == plain.encode(words[0]).ids
    assert found.shape.layers == 3
    assert torch.equal(found.weights["pool.weight"], theirs.pooler.dense.weight)


def test_missing_weights_are_reported_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="it is a folder, but not of a model"):
        pretrained.load(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match=r"no such folder, and not to be had(.|\n)*random:mini"):
        pretrained.load("nadie/nada")
    with pytest.raises(OptionError, match="expected random: and one of tiny, mini"):
        pretrained.random_shape("random:huge", 100)


def test_an_encoder_of_another_kind_is_refused() -> None:
    model = transformers.AutoModel.from_config(transformers.AlbertConfig(**{**BERT, "embedding_size": 16}))
    with pytest.raises(ConfigurationError, match="type albert; this encoder is bert, roberta"):
        pretrained.take_over(model.config, model.state_dict(), "x")
