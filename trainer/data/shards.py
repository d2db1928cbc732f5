"""Prepared tokens: memory-mapped shards and a manifest."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.data.manifests import PreparedTokens
from trainer.data.order import Indices
from trainer.data.prepared_folder import TOKENS, store
from trainer.data.texts import Document
from trainer.data.tokenizer import END_OF_TEXT, SMALLEST_VOCABULARY, train_bpe
from trainer.errors import ConfigurationError, OptionError

SHARD_TOKENS = 1 << 26
VALIDATION_SHARE = 0.02
PIECE_CHARACTERS = 8192
SHORTEST_SAMPLE = 8
"""Tokens: shorter ones teach nothing about a language."""


def prepare(
    documents: list[Document], folder: Path, vocab_size: int, tokenizer: Tokenizer | None = None
) -> tuple[PreparedTokens, bool]:
    """Write tokenizer (the given one, or one trained on the texts), shards and manifest; (data, False) if the folder
    holds just that already."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise OptionError(f"--vocab-size {vocab_size}: the bytes alone need {SMALLEST_VOCABULARY}")
    vocabulary = tokenizer.to_str() if tokenizer else str(vocab_size)
    digest = hashlib.sha256(f"{TOKENS.format} {vocabulary} {VALIDATION_SHARE} {PIECE_CHARACTERS}".encode())
    for document in documents:
        text = document.text.encode()
        digest.update(f"\0{document.name}\0{len(text)}\0".encode() + text)
    fingerprint = digest.hexdigest()
    if there := PreparedTokens.kept(folder, input_sha256=fingerprint):
        return there, False

    train_pieces, validation_pieces = split(documents)
    tokenizer = tokenizer or train_bpe(train_pieces, vocab_size)
    encoded = {"train": tokenizer.encode_batch(train_pieces), "validation": tokenizer.encode_batch(validation_pieces)}
    # Before anything is written: every training would refuse a split without a sample.
    for name, encodings in encoded.items():
        if (length := sum(len(piece.ids) + 1 for piece in encodings)) <= SHORTEST_SAMPLE:
            raise ConfigurationError(
                f"too little text: {length} tokens for {name}, and a sample takes {SHORTEST_SAMPLE} and one more at the"
                f" least (a share of {VALIDATION_SHARE:.0%} is for validation)"
            )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_entry = store(folder, "tokenizer", ".json", tokenizer.to_str(pretty=True).encode())
    size = tokenizer.get_vocab_size()
    dtype = np.dtype("<u2") if size <= 1 << 16 else np.dtype("<u4")
    end = tokenizer.token_to_id(END_OF_TEXT)
    splits: dict[str, dict[str, Any]] = {}
    for name, pieces in (("train", train_pieces), ("validation", validation_pieces)):
        tokens = np.concatenate([np.array([*piece.ids, end], dtype) for piece in encoded[name]])
        shards = []
        for start in range(0, len(tokens), SHARD_TOKENS):
            shard = tokens[start : start + SHARD_TOKENS]
            shards.append({**store(folder, name, ".bin", shard.tobytes()), "tokens": len(shard)})
        in_bytes = sum(len(piece.encode()) for piece in pieces)
        splits[name] = {"tokens": len(tokens), "bytes": in_bytes, "pieces": len(pieces), "shards": shards}
    manifest = {
        "input_sha256": fingerprint,
        "tokenizer": tokenizer_entry,
        "vocab_size": size,
        "dtype": dtype.str,
        "bytes_per_token": sum(s["bytes"] for s in splits.values()) / sum(s["tokens"] for s in splits.values()),
        "splits": splits,
    }
    return PreparedTokens.finish(folder, manifest), True


def split(documents: list[Document]) -> tuple[list[str], list[str]]:
    """Pieces for training and for validation. The choice depends on a piece's own text alone."""
    total = sum(len(document.text) for document in documents)
    longest = max(1, min(PIECE_CHARACTERS, total // 50))
    pieces = [piece for document in documents for piece in _pieces(document.text, longest)]
    wanted = VALIDATION_SHARE * total
    chosen: set[int] = set()
    for number in sorted(range(len(pieces)), key=lambda n: hashlib.sha256(pieces[n].encode()).digest()):
        if wanted <= 0:
            break
        chosen.add(number)
        wanted -= len(pieces[number])
    train = [piece for number, piece in enumerate(pieces) if number not in chosen]
    if not train:
        raise ConfigurationError(f"{total} characters are too little text to train on")
    return train, [pieces[number] for number in sorted(chosen)]


def _pieces(text: str, longest: int) -> list[str]:
    """The text in parts of about `longest` characters, cut at the ends of lines where there are any."""
    pieces, start = [], 0
    while start < len(text):
        end = start + longest
        cut = text.rfind("\n", start + longest // 2, end) + 1 if end < len(text) else len(text)
        end = cut or end
        pieces.append(text[start:end])
        start = end
    return pieces


class Windows:
    """Sample i: `length` tokens of a memory-mapped shard, and the token after them."""

    def __init__(self, prepared: PreparedTokens, split: str, length: int) -> None:
        dtype = np.dtype(prepared.manifest["dtype"])
        entries = prepared.manifest["splits"][split]["shards"]
        self.length = length
        self._shards = [np.memmap(prepared.folder / str(entry["file"]), dtype, "r") for entry in entries]
        self._ends = list(accumulate((len(shard) - 1) // length for shard in self._shards))
        prepared.must_hold_a_window(split, length)

    def __len__(self) -> int:
        return self._ends[-1]

    def take(self, indices: Indices) -> NDArray[np.int64]:
        windows = []
        for index in map(int, indices):
            shard = bisect_right(self._ends, index)
            start = (index - (self._ends[shard - 1] if shard else 0)) * self.length
            windows.append(self._shards[shard][start : start + self.length + 1])
        return np.stack(windows).astype(np.int64)
