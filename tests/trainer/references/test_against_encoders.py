"""The encoder against BERT, RoBERTa and DistilBERT of transformers with the same weights, padded and packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from tests.trainer.references.conftest import Agrees
from tests.trainer.references.deviation import largest, relative
from trainer.models import pretrained
from trainer.models.encoder import Among, Dropout, Encoder
from trainer.models.packed import Packed

NONE = Dropout(hidden=0.0, attention=0.0, head=0.0)
SIZES = {"vocab_size": 200, "max_position_embeddings": 66}
BERT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128, **SIZES}
CHANCE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTIL = {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, **SIZES}
MODELS: dict[str, tuple[Any, Any]] = {
    "BERT": (transformers.BertForSequenceClassification, transformers.BertConfig(**BERT, **CHANCE, num_labels=5)),
    "BERT, gelu_new": (transformers.BertModel, transformers.BertConfig(**BERT, **CHANCE, hidden_act="gelu_new")),
    "RoBERTa": (transformers.RobertaModel, transformers.RobertaConfig(**BERT, **CHANCE, pad_token_id=1)),
    "DistilBERT": (
        transformers.DistilBertModel,
        transformers.DistilBertConfig(**DISTIL, dropout=0.0, attention_dropout=0.0, activation="relu"),
    ),
}
LENGTHS, LABELS = [7, 20, 13], torch.tensor([1, 4, 0])


def their_logits(theirs: Any, ours: Encoder, tokens: Tensor, present: Tensor) -> Tensor:
    found = theirs(tokens, attention_mask=present.long())
    if "logits" in found:
        logits: Tensor = found.logits
        return logits
    pooled = torch.tanh(F.linear(found.last_hidden_state[:, 0], ours.pool.weight, ours.pool.bias))
    return F.linear(pooled, ours.heads.weight, ours.heads.bias)


def in_one_row(tokens: Tensor) -> tuple[Tensor, Packed]:
    """The texts without padding, in the order of their lengths."""
    order = sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__)
    row = torch.cat([tokens[text, : LENGTHS[text]] for text in order])
    places = torch.cat([torch.arange(LENGTHS[text]) for text in order])
    bounds = torch.tensor([0, *(LENGTHS[text] for text in order)]).cumsum(0).int()
    starts = bounds[:-1].long()[torch.tensor(order).argsort()]
    return row, Packed(places, starts, bounds, 64)


@pytest.mark.parametrize("kind", MODELS)
def test_logits_loss_and_gradients_padded_and_packed(kind: str, agrees: Agrees) -> None:
    model, config = MODELS[kind]
    torch.manual_seed(0)
    theirs = model(config).train()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and norms start at 0 and 1, where a mix-up would not show
            parameter.add_(torch.randn_like(parameter) * 0.1)
    shape, weights = pretrained.take_over(config, theirs.state_dict())
    ours = Encoder(shape, 5, NONE)
    missing, unknown = ours.load_state_dict(weights, strict=False)
    assert not unknown
    assert {name.split(".")[0] for name in missing} <= {"heads", "pool"}
    if kind == "BERT":
        ours.heads.load_state_dict(theirs.classifier.state_dict())
    present = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randint(5, 200, present.shape).masked_fill(~present, config.pad_token_id)

    expected = their_logits(theirs, ours, tokens, present)
    expected_loss = F.cross_entropy(expected, LABELS)
    expected_loss.backward()
    graded = {name: one.grad for name, one in theirs.named_parameters() if one.grad is not None}
    # Ours has no token types: their one vector is part of every position's.
    graded = {name: grad for name, grad in graded.items() if "token_type" not in name}
    _, expected_gradients = pretrained.take_over(config, graded)

    row, packed = in_one_row(tokens)
    ways: dict[str, tuple[Tensor, Among]] = {"padded": (tokens, present[:, None, None, :]), "packed": (row, packed)}
    for way, given in ways.items():
        ours.zero_grad()
        logits = ours(*given)
        loss = F.cross_entropy(logits, LABELS)
        loss.backward()
        gradients = {name: dict(ours.named_parameters())[name].grad for name in expected_gradients}
        # Measured: 5.3e-7, 0, 8.5e-7.
        agrees(
            f"{kind}, {way}", "transformers",
            logits=(relative(logits, expected), 5e-6),
            loss=(relative(loss, expected_loss), 1e-6),
            gradients=(largest(gradients, expected_gradients), 8e-6),
        )  # fmt: skip

    frozen = Encoder(shape, 5, NONE, frozen=shape.layers)
    frozen.load_state_dict(ours.state_dict())
    last = theirs.base_model(tokens, attention_mask=present.long()).last_hidden_state
    found = frozen.embed(tokens, present[:, None, None, :])
    deviation = relative(found[present], last[present])
    agrees(f"{kind}, all layers frozen", "transformers", last_layer=(deviation, 3e-6))  # measured: 3.0e-7
