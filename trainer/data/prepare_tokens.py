"""Texts of any size to prepared tokens, in bounded memory: shards and a manifest.

The texts are read three times: `_surveyed` finds their fingerprint, the pieces for validation and a sample from which
the tokenizer is trained; `_tokenize` writes the shards, notes how far it is, and continues there after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.data.files import write_atomic
from trainer.data.manifests import PreparedTokens
from trainer.data.prepared_folder import TOKENS, store
from trainer.data.texts import Document
from trainer.data.token_files import TokenFiles
from trainer.data.tokenizer import END_OF_TEXT, SMALLEST_VOCABULARY, train_bpe
from trainer.errors import ConfigurationError, OptionError

SHARD_TOKENS = 1 << 26
VALIDATION_SHARE = 0.02
PIECE_CHARACTERS = 8192
SHORTEST_SAMPLE = 8
"""Tokens: shorter ones teach nothing about a language."""
SAMPLE_CHARACTERS = 48 << 20
"""Characters of the sample from which the tokenizer of a larger text is trained, at least; at most twice as many."""
BINS = 1 << 20
BATCH_CHARACTERS = 2 << 20
"""Characters that are tokenized at once, by all cores: an encoded text takes about 40 times its own memory."""
SAVE_EVERY_S = 20.0
PROGRESS = ".preparing.json"
"""File with the progress of an interrupted preparation; the next one continues it."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TextSurvey:
    """All that must be known of the texts before the first of them is tokenized."""

    fingerprint: str
    characters: int
    longest: int
    """Characters of a piece, at most."""
    validation_bins: int
    """A piece whose hash falls into one of so many of all `BINS` bins is for validation."""
    validation_rest: int
    """Characters of the next bin that are, too: of equal pieces the first."""


def prepare(
    texts: Iterable[Document], folder: Path, vocab_size: int, tokenizer: Tokenizer | None = None, say: Say = print
) -> tuple[PreparedTokens, bool]:
    """Write tokenizer (the given one, or one trained on the texts), shards and manifest; (data, False) if the folder
    holds just that already.

    `texts` is read several times. Memory does not grow with its size.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise OptionError(f"--vocab-size {vocab_size}: the bytes alone need {SMALLEST_VOCABULARY}")
    vocabulary = tokenizer.to_str() if tokenizer else str(vocab_size)
    rules = f"{TOKENS.format} {vocabulary} {VALIDATION_SHARE} {PIECE_CHARACTERS} {SAMPLE_CHARACTERS}"
    progress = _Progress(folder / PROGRESS, rules, getattr(texts, "stamp", None))
    clock = _Clock(texts, say)
    survey, sample = progress.survey, list[str]()
    if survey is None:
        survey, sample = _surveyed(texts, rules, clock)
    if there := PreparedTokens.existing(folder, input_sha256=survey.fingerprint):
        progress.remove()
        return there, False
    folder.mkdir(parents=True, exist_ok=True)
    trained = progress.tokenizer or tokenizer
    if trained is None:
        say("training the tokenizer") if survey.characters > SAMPLE_CHARACTERS else None
        trained = train_bpe(sample, vocab_size)
    progress.begin(survey, trained)
    splits = _tokenize(texts, survey, trained, progress, clock)
    manifest = {
        "input_sha256": survey.fingerprint,
        "tokenizer": store(folder, "tokenizer", ".json", trained.to_str(pretty=True).encode()),
        "vocab_size": trained.get_vocab_size(),
        "dtype": _dtype(trained).str,
        "bytes_per_token": sum(s["bytes"] for s in splits.values()) / sum(s["tokens"] for s in splits.values()),
        "splits": splits,
    }
    done = PreparedTokens.finish(folder, manifest)
    progress.remove()
    return done, True


def _surveyed(texts: Iterable[Document], rules: str, clock: _Clock) -> tuple[TextSurvey, list[str]]:
    """The survey, and pieces of the training split for the tokenizer: all of them, or of a large text a sample."""
    digest, total = hashlib.sha256(rules.encode()), 0
    for document in texts:
        text = document.text.encode()
        digest.update(f"\0{document.name}\0{len(text)}\0".encode() + text)
        total += len(document.text)
        clock.tell("reading")
    longest = max(1, min(PIECE_CHARACTERS, total // 50))
    sizes, sample = np.zeros(BINS, np.int64), _Sample()
    for document in texts:
        for piece in _pieces(document.text, longest):
            key = hashlib.sha256(piece.encode()).digest()
            sizes[_bin(key)] += len(piece)
            sample.add(key, piece)
        clock.tell("dividing")
    wanted, up_to = VALIDATION_SHARE * total, np.cumsum(sizes)
    bins = int(np.searchsorted(up_to, wanted))
    rest = math.ceil(wanted) - int(up_to[bins] - sizes[bins])
    survey = TextSurvey(
        fingerprint=digest.hexdigest(), characters=total, longest=longest, validation_bins=bins, validation_rest=rest
    )
    return survey, [piece for key, piece in sample.pieces if _bin(key) >= bins]


class _Sample:
    """Pieces with the smallest hashes: a sample that depends on the pieces alone."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, str]] = []
        self._characters, self._limit = 0, b"\xff" * 9

    def add(self, key: bytes, piece: str) -> None:
        if key[8:16] > self._limit:
            return
        self.pieces.append((key, piece))
        self._characters += len(piece)
        if self._characters > 2 * SAMPLE_CHARACTERS:
            self._limit = sorted(key[8:16] for key, _ in self.pieces)[len(self.pieces) // 2]
            self.pieces = [(key, piece) for key, piece in self.pieces if key[8:16] <= self._limit]
            self._characters = sum(len(piece) for _, piece in self.pieces)


def _bin(key: bytes) -> int:
    return int.from_bytes(key[:8], "big") * BINS >> 64


@dataclass(frozen=True, kw_only=True)
class _Piece:
    text: str
    split: str


class _Source:
    """Pieces of texts in their order, each with its split. The choice depends on a piece's own text alone, except
    among pieces of one bin."""

    def __init__(self, texts: Iterable[Document], survey: TextSurvey, rest: int) -> None:
        """`rest`: characters that the last bin of validation still lacks."""
        self._texts, self._survey, self.rest = texts, survey, rest

    def pieces(self, skip: int) -> Iterator[_Piece]:
        """All pieces but the first `skip`, which are read but not hashed."""
        survey = self._survey
        everything = (piece for document in self._texts for piece in _pieces(document.text, survey.longest))
        for text in islice(everything, skip, None):
            at = _bin(hashlib.sha256(text.encode()).digest())
            is_validation = at < survey.validation_bins
            if at == survey.validation_bins and self.rest > 0:
                is_validation = True
                self.rest -= len(text)
            yield _Piece(text=text, split="validation" if is_validation else "train")

    def batches(self, skip: int) -> Iterator[list[_Piece]]:
        batch, characters = list[_Piece](), 0
        for piece in self.pieces(skip):
            batch.append(piece)
            characters += len(piece.text)
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


def _tokenize(
    texts: Iterable[Document], survey: TextSurvey, tokenizer: Tokenizer, progress: _Progress, clock: _Clock
) -> dict[str, dict[str, Any]]:
    """Write the shards; return the splits of the manifest. ConfigurationError: too little text for a sample."""
    dtype, end = _dtype(tokenizer), tokenizer.token_to_id(END_OF_TEXT)
    files = _files(progress, dtype)
    saved, source = time.monotonic(), _Source(texts, survey, progress.rest)
    with ExitStack() as opened:
        for one in files.values():
            opened.callback(one.close)
        for batch in source.batches(skip=progress.pieces):
            encoded = tokenizer.encode_batch_fast([piece.text for piece in batch])
            for piece, encoding in zip(batch, encoded, strict=True):
                files[piece.split].add(np.array([*encoding.ids, end], dtype), len(piece.text.encode()))
            progress.pieces, progress.rest = progress.pieces + len(batch), source.rest
            clock.tell("tokenizing")
            if time.monotonic() - saved > SAVE_EVERY_S:
                progress.files = {name: one.state() for name, one in files.items()}
                progress.save()
                saved = time.monotonic()
    # Before the manifest is written: every training would refuse a split without a sample.
    for name, one in files.items():
        if one.tokens <= SHORTEST_SAMPLE:
            for each in files.values():
                each.remove()
            progress.remove()
            with suppress(OSError):  # it holds something else
                progress.folder.rmdir()
            raise ConfigurationError(
                f"too little text: {one.tokens} tokens for {name}, and a sample takes {SHORTEST_SAMPLE} and one more at"
                f" the least (a share of {VALIDATION_SHARE:.0%} is for validation)"
            )
    return {name: one.finish() for name, one in files.items()}


def _files(progress: _Progress, dtype: np.dtype[Any]) -> dict[str, TokenFiles]:
    """Files of both splits: those of the interrupted preparation, or new ones where these are not whole."""

    def made() -> dict[str, TokenFiles]:
        return {name: TokenFiles(progress.folder, name, dtype, SHARD_TOKENS) for name in ("train", "validation")}

    files = made()
    if progress.files and all(one.restore(progress.files[name]) for name, one in files.items()):
        return files
    for one in files.values():
        one.remove()
    progress.restart()
    return made()


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype("<u2") if tokenizer.get_vocab_size() <= 1 << 16 else np.dtype("<u4")


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


class _Progress:
    """Progress of a preparation, in a file; of texts without a stamp nothing is saved."""

    def __init__(self, path: Path, rules: str, stamp: list[Any] | None) -> None:
        self.folder, self._path = path.parent, path
        self._is_saved, self._key = stamp is not None, json.loads(json.dumps([rules, stamp]))
        self.survey: TextSurvey | None = None
        self.tokenizer: Tokenizer | None = None
        self.pieces = self.rest = 0
        """Pieces that are in the files; characters that the last bin of validation lacks."""
        self.files: dict[str, dict[str, Any]] = {}
        if self._is_saved:
            self._read()

    def begin(self, survey: TextSurvey, tokenizer: Tokenizer) -> None:
        """Keep what the texts need not be read for again; no effect where a preparation is continued."""
        if self.survey is None:
            self.survey, self.tokenizer = survey, tokenizer
            self.restart()

    def restart(self) -> None:
        """Begin with the first piece."""
        self.pieces, self.files = 0, {}
        self.rest = self.survey.validation_rest if self.survey else 0
        self.save()

    def save(self) -> None:
        if self._is_saved and self.survey and self.tokenizer:
            at = {"pieces": self.pieces, "rest": self.rest, "files": self.files}
            known = {"key": self._key, "survey": asdict(self.survey), "tokenizer": self.tokenizer.to_str()}
            write_atomic(self._path, json.dumps(known | at).encode())

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            found = json.loads(self._path.read_text("utf-8"))
            if found["key"] != self._key:
                return
            survey, tokenizer = TextSurvey(**found["survey"]), Tokenizer.from_str(found["tokenizer"])
            self.pieces, self.rest, self.files = int(found["pieces"]), int(found["rest"]), dict(found["files"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or not ours
            return
        self.survey, self.tokenizer = survey, tokenizer


class _Clock:
    """Says how far a pass over the texts is, and how long it takes, every few seconds."""

    EVERY_S = 5.0

    def __init__(self, texts: Iterable[Document], say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._texts, self._say, self._now = texts, say, clock
        self._pass, self._reported_at = "", clock()
        self._began, self._first = 0.0, 0

    def tell(self, what: str) -> None:
        now = self._now()
        done, size = getattr(self._texts, "done", (0, 0))
        if what != self._pass:
            self._pass, self._began, self._first = what, now, done
        if not size or now - self._reported_at < self.EVERY_S or now == self._began or done == self._first:
            return
        self._reported_at = now
        rate = (done - self._first) / (now - self._began)
        left_s = (size - done) / rate
        left = f"{left_s / 60:.0f} min" if left_s >= 100 else f"{left_s:.0f} s"
        self._say(f"{what}: {done / 1e9:.2f} of {size / 1e9:.2f} GB, {rate / 1e6:.1f} MB/s, {left} left")
