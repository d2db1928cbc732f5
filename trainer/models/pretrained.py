"""Encoders by name: from the hub or a folder through `transformers`, or with random weights in a known size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainer.errors import ConfigurationError
from trainer.models import sizes
from trainer.models.encoder import ACTIVATIONS, Encoder, EncoderShape

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    shape: EncoderShape
    weights: Weights
    """State dict of models/encoder.py without the heads and, for some models, without the pooling layer."""
    tokenizer: Tokenizer


def random_shape(name: str, vocab_size: int) -> EncoderShape:
    layers, attention_heads, width = sizes.of(name)
    return EncoderShape(
        layers=layers, attention_heads=attention_heads, width=width, inner_width=4 * width, vocab_size=vocab_size
    )


def fill(encoder: Encoder, weights_file: Path | None) -> None:
    """Load weights from a file, if there is one; the heads, and a pooling layer without weights, stay as they are."""
    if weights_file is None:
        return
    from safetensors.torch import load_file

    missing, unknown = encoder.load_state_dict(load_file(weights_file), strict=False)
    unexpected = [name for name in missing if not name.startswith(("heads.", "pool."))]
    if unexpected or unknown:
        raise ConfigurationError(f"{weights_file}: not the weights of this encoder ({[*unexpected, *unknown][:3]} …)")


def load(name: str) -> Pretrained:
    """Load a model of the hub or of a folder, with its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
        model = AutoModel.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError) as error:
        where = "it is a folder, but not of a model" if Path(name).is_dir() else "no such folder, and not to be had"
        raise ConfigurationError(
            f"--model-name {name}: {where} ({str(error).splitlines()[0]})\n"
            "give the folder of a model that you have (config.json, model.safetensors, tokenizer.json),\n"
            f"or {sizes.RANDOM}mini to train one from nothing, which needs no internet"
        ) from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigurationError(f"--model-name {name}: its tokenizer has no tokenizer.json form")
    plain = Tokenizer.from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    shape, weights = take_over(model.config, model.state_dict(), name)
    return Pretrained(shape=shape, weights=weights, tokenizer=plain)


def take_over(config: Any, state: Mapping[str, Tensor], name: str = "") -> tuple[EncoderShape, Weights]:
    """Convert shape and weights of a BERT, RoBERTa or DistilBERT of `transformers` to those of models/encoder.py."""
    if config.model_type not in LAYOUTS:
        raise ConfigurationError(
            f"--model-name {name}: a model of type {config.model_type}; this encoder is {', '.join(LAYOUTS)}"
        )
    layout = LAYOUTS[config.model_type]
    activation = str(config.activation if config.model_type == "distilbert" else config.hidden_act)
    if activation not in ACTIVATIONS:
        raise ConfigurationError(f"--model-name {name}: activation {activation}; known: {', '.join(ACTIVATIONS)}")
    roberta = config.model_type in ("roberta", "camembert", "xlm-roberta")
    shape = EncoderShape(
        layers=config.num_hidden_layers,
        attention_heads=config.num_attention_heads,
        width=config.hidden_size,
        inner_width=config.hidden_dim if config.model_type == "distilbert" else config.intermediate_size,
        vocab_size=config.vocab_size,
        positions=config.max_position_embeddings,
        first_position=config.pad_token_id + 1 if roberta else 0,
        padding_id=config.pad_token_id or 0,
        activation=activation,
        norm_epsilon=getattr(config, "layer_norm_eps", 1e-12),
    )
    return shape, _renamed(state, layout, shape.layers)


def _renamed(state: Mapping[str, Tensor], layout: Mapping[str, str], layers: int) -> Weights:
    # A model with a task has a prefix for its encoder: `bert.`, `distilbert.`.
    marker = "embeddings.word_embeddings.weight"
    prefix = next(key for key in state if key.endswith(marker)).removesuffix(marker)
    state = {key.removeprefix(prefix): value for key, value in state.items()}
    weights = {ours: state[f"embeddings.{theirs}"].clone() for ours, theirs in EMBEDDINGS.items()}
    token_types = state.get("embeddings.token_type_embeddings.weight")
    if token_types is not None:
        weights["embeddings.positions.weight"] += token_types[0]
    for number in range(layers):
        for ours, theirs in layout.items():
            if ours == "prefix":
                continue
            for kind in ("weight", "bias"):
                parts = [state[f"{layout['prefix']}.{number}.{part}.{kind}"] for part in theirs.split()]
                weights[f"layers.{number}.{ours}.{kind}"] = torch.cat(parts)
    if "pooler.dense.weight" in state:
        for kind in ("weight", "bias"):
            weights[f"pool.{kind}"] = state[f"pooler.dense.{kind}"].clone()
    return weights


EMBEDDINGS = {
    "embeddings.tokens.weight": "word_embeddings.weight",
    "embeddings.positions.weight": "position_embeddings.weight",
    "embeddings.norm.weight": "LayerNorm.weight",
    "embeddings.norm.bias": "LayerNorm.bias",
}
_BERT = {
    "prefix": "encoder.layer",
    "qkv": "attention.self.query attention.self.key attention.self.value",
    "proj": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm_2": "output.LayerNorm",
}
LAYOUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "camembert": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": {
        "prefix": "transformer.layer",
        "qkv": "attention.q_lin attention.k_lin attention.v_lin",
        "proj": "attention.out_lin",
        "norm_1": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "norm_2": "output_layer_norm",
    },
}
