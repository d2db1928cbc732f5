"""`text prepare` and `text lengths`: from a CSV file to tokens, and what their lengths mean."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.data import failure_texts, labelled_text, spanish_passages, text_lengths, text_prepared, wordpiece
from trainer.data.files import write_atomic
from trainer.data.labelled_text import LabelledText
from trainer.data.text_prepared import PreparedText, Rows
from trainer.errors import ConfigurationError, UsageError
from trainer.models import pretrained, sizes
from trainer.models.pretrained import Pretrained
from trainer.workloads import text_options


def prepare(given: argparse.Namespace) -> int:
    if not 0 < given.validation_share < 1:
        raise UsageError(f"--validation-share {given.validation_share:g}: expected more than 0 and less than 1")
    source, text_column, heads = _source(given)
    rows = labelled_text.read_labelled(source, text_column, list(heads))
    if given.validation_csv:
        train, validation = rows, labelled_text.read_labelled(given.validation_csv, text_column, list(heads))
        labelled_text.must_be_right(_strangers(given.validation_csv, validation, train, list(heads)))
    else:
        weights = list(heads.values())
        train, validation = labelled_text.split(rows, given.validation_share, weights.index(max(weights)))
    model = _model(given, [row.text for row in train])
    splits = {"train": train, "validation": validation}
    prepared = text_prepared.write(given.data_dir, given.model_name, model, heads, splits)
    print(f"{given.data_dir}: {len(train)} texts to train, {len(validation)} to validate, for {given.model_name}")
    for name, classes in prepared.heads.items():
        print(f"  {name} (weight {heads[name]:g}): {len(classes)} classes: {_few(classes)}")
    print("\n".join(text_lengths.report(_lengths_of(prepared), prepared.shape.longest)))
    return 0


def lengths(given: argparse.Namespace) -> int:
    prepared = text_prepared.PreparedText.open(given.data_dir)
    found, longest = _lengths_of(prepared), prepared.shape.longest
    if given.json:
        print(json.dumps(text_lengths.as_json(found, longest)))
    else:
        print("\n".join(text_lengths.report(found, longest, given.max_length)))
    return 0


def _source(given: argparse.Namespace) -> tuple[Path, str, dict[str, float]]:
    """The CSV file, its column of text and its heads; the two built-in sources leave a file that one can look at."""
    if given.csv == "demo":
        name, content, text_column, heads = "demo", failure_texts.as_csv(given.rows), "descripcion", failure_texts.HEADS
    elif given.csv == "spanish":
        print("Spanish text from Debian's packages:")
        name, content = "spanish", spanish_passages.as_csv(spanish_passages.fetch(print))
        text_column, heads = spanish_passages.TEXT_COLUMN, spanish_passages.HEADS
    else:
        heads = text_options.parse_heads(given.heads) if given.heads else text_options.HEADS
        return Path(given.csv), given.text_column or text_options.TEXT_COLUMN, dict(heads)
    given.data_dir.mkdir(parents=True, exist_ok=True)
    path = given.data_dir / f"{name}.csv"
    write_atomic(path, content.encode())
    chosen = text_options.parse_heads(given.heads, heads) if given.heads else dict(heads)
    return path, given.text_column or text_column, chosen


def _model(given: argparse.Namespace, texts: Sequence[str]) -> Pretrained:
    if not given.model_name.startswith(sizes.RANDOM):
        return pretrained.load(given.model_name)
    sizes.of(given.model_name)  # a wrong name is told before the tokenizer is trained
    if given.vocab_size < len(wordpiece.SPECIAL) + 100:
        raise UsageError(f"--vocab-size {given.vocab_size}: letters and marks alone need about 100")
    tokenizer = wordpiece.train(texts, given.vocab_size)
    shape = pretrained.random_shape(given.model_name, tokenizer.get_vocab_size())
    return Pretrained(shape=shape, weights={}, tokenizer=tokenizer)


def _strangers(
    path: Path, validation: Sequence[LabelledText], train: Sequence[LabelledText], heads: list[str]
) -> list[str]:
    """Classes that nobody could have learnt."""
    known = [{row.labels[at] for row in train} for at in range(len(heads))]
    return [
        f"{path}:{row.line}: {head} {label!r} is no class of the training texts"
        for row in validation
        for at, (head, label) in enumerate(zip(heads, row.labels, strict=True))
        if label not in known[at]
    ]


def _lengths_of(prepared: PreparedText) -> np.typing.NDArray[np.int64]:
    longest = prepared.shape.longest
    found = np.concatenate([Rows(prepared, split, longest).full_lengths for split in text_prepared.SPLITS])
    if not len(found):
        raise ConfigurationError(f"{prepared.folder}: no texts")
    return found


def _few(names: Sequence[str], shown: int = 8) -> str:
    return ", ".join(names[:shown]) + (f", … ({len(names) - shown} more)" if len(names) > shown else "")
