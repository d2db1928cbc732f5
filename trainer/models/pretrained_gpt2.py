"""Conversion between GPT-2 of `transformers` and models/gpt2.py, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from trainer.data.tokenizer import END_OF_TEXT
from trainer.errors import ConfigurationError
from trainer.models.gpt2 import GPT2, Gpt2Shape

# Names in models/gpt2.py and in `transformers`, which keeps the matrices of a block transposed (`Conv1D`).
ENDS = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
IN_BLOCK = {
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.proj": "attn.c_proj",
    "norm_2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
AS_OURS: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
"""Settings that models/gpt2.py has built in."""


def shape_of(source: str, seq_len: int | None = None) -> Gpt2Shape:
    """`source`: a folder, or a name on the hub. `seq_len`: number of its positions to use."""
    config = _loaded(AutoConfig, source)
    wrong = [
        f"{name} is {getattr(config, name, None)!r}, and it must be {' or '.join(map(repr, allowed))}"
        for name, allowed in AS_OURS.items()
        if getattr(config, name, None) not in allowed
    ]
    if not wrong and config.n_inner not in (None, 4 * config.n_embd):
        wrong = [f"n_inner is {config.n_inner}, and it must be {4 * config.n_embd}"]
    if not wrong and seq_len and seq_len > config.n_positions:
        wrong = [f"it has {config.n_positions} positions, too few for --seq-len {seq_len}"]
    if wrong:
        raise ConfigurationError(f"{source} is no GPT-2 that can be trained on here:\n  " + "\n  ".join(wrong))
    return Gpt2Shape(
        layers=config.n_layer,
        heads=config.n_head,
        width=config.n_embd,
        seq_len=seq_len or config.n_positions,
        vocab_size=config.vocab_size,
    )


def weights_of(source: str, shape: Gpt2Shape) -> dict[str, Tensor]:
    """Convert a model of `transformers` to weights for `GPT2.load_state_dict`."""
    theirs = _loaded(GPT2LMHeadModel, source, dtype=torch.float32).state_dict()
    ours = {
        our_name: theirs[their_name].T.contiguous() if transposed else theirs[their_name]
        for our_name, their_name, transposed in _names(shape.layers)
    }
    return {**ours, "positions.weight": ours["positions.weight"][: shape.seq_len]}


def tokenizer_of(source: str) -> Tokenizer:
    """Tokenizer of a folder, a file `tokenizer.json`, or a name on the hub."""
    if Path(source).is_file():
        tokenizer = Tokenizer.from_file(source)
    else:
        loaded = _loaded(AutoTokenizer, source)
        if not isinstance(loaded, PreTrainedTokenizerFast):
            raise ConfigurationError(f"{source}: its tokenizer has no tokenizer.json, and none can be made of it")
        tokenizer = loaded.backend_tokenizer
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise ConfigurationError(f"{source}: a tokenizer without the token {END_OF_TEXT}, which ends each text")
    return tokenizer


def must_be_the_datas(source: str, shape: Gpt2Shape, data_tokenizer: Tokenizer, data_dir: Path) -> None:
    """Refuse data of another tokenizer, of which each token would mean another word to the model."""
    if _meaning(tokenizer_of(source)) != _meaning(data_tokenizer) or data_tokenizer.get_vocab_size() > shape.vocab_size:
        raise ConfigurationError(
            f"{data_dir} was not prepared with the tokenizer of {source}, so its tokens mean nothing to that model:"
            f" prepare it again with `python -m trainer gpt2 prepare --tokenizer {source} --text … --data-dir …`"
        )


def export(model: GPT2, tokenizer_file: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files."""
    shape, tokenizer, ours = model.shape, Tokenizer.from_file(str(tokenizer_file)), model.state_dict()
    end = tokenizer.token_to_id(END_OF_TEXT)
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.seq_len,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=end,
        eos_token_id=end,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
    )
    theirs = {
        their_name: ours[our_name].T.contiguous() if transposed else ours[our_name]
        for our_name, their_name, transposed in _names(shape.layers)
    }
    exported = GPT2LMHeadModel(config)
    exported.load_state_dict({**theirs, "lm_head.weight": theirs["transformer.wte.weight"]})
    exported.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers' own gap
        tokenizer_object=tokenizer,
        model_max_length=shape.seq_len,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
    )
    wrapped.save_pretrained(str(folder))


def _names(layers: int) -> list[tuple[str, str, bool]]:
    """List (name in models/gpt2.py, name in `transformers`, whether one is the other transposed)."""
    pairs = [(ours, f"transformer.{theirs}") for ours, theirs in ENDS.items()]
    for layer in range(layers):
        pairs += [(f"blocks.{layer}.{ours}", f"transformer.h.{layer}.{theirs}") for ours, theirs in IN_BLOCK.items()]
    names = []
    for ours, theirs in pairs:
        names.append((f"{ours}.weight", f"{theirs}.weight", theirs.split(".")[-1].startswith("c_")))
        if ours not in ("tokens", "positions"):
            names.append((f"{ours}.bias", f"{theirs}.bias", False))
    return names


def _loaded(kind: Any, source: str, **how: Any) -> Any:
    try:
        return kind.from_pretrained(source, **how)
    except (OSError, ValueError) as error:
        if Path(source).is_dir():
            raise ConfigurationError(f"{source}: transformers does not load it: {error}") from None
        raise ConfigurationError(
            f"{source} is no folder here, and from the hub it did not come: {str(error).splitlines()[0]}\n"
            f"where there is internet, run `hf download {source} --local-dir FOLDER`, and give that folder"
        ) from None


def _meaning(tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings that determine the tokens of a text."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    # Older files write a merge as one string.
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges", [])]
    added = sorted((token["id"], token["content"]) for token in content["added_tokens"])
    return {
        "vocab": model["vocab"],
        "merges": merges,
        "added": added,
        "before": (content["normalizer"], content["pre_tokenizer"]),
    }
