"""`text prepare` and `text lengths`: from a CSV file to tokens, and what their lengths mean."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from tokenizers import Tokenizer

from trainer.data import failure_texts, labelled_text, spanish
from trainer.data.files import write_atomic
from trainer.data.labelled_text import LabelledText
from trainer.data.manifests import PreparedText
from trainer.data.prepared_folder import store
from trainer.data.text_prepared import SPLITS, Rows, advised_length, length_report, length_statistics
from trainer.data.tokenizer import SPECIAL, train_wordpiece
from trainer.errors import ConfigurationError, OptionError
from trainer.models import pretrained, sizes
from trainer.models.pretrained import Pretrained
from trainer.workloads import text_options

SHOWN = 8
"""Classes of a head that are printed."""


def prepare(given: argparse.Namespace) -> int:
    if not 0 < given.validation_share < 1:
        raise OptionError(f"--validation-share {given.validation_share:g}: expected more than 0 and less than 1")
    source, text_column, heads = _source(given)
    rows = labelled_text.read_labelled(source, text_column, list(heads))
    if given.validation_csv:
        train, validation = rows, labelled_text.read_labelled(given.validation_csv, text_column, list(heads))
        labelled_text.must_be_right(_unknown_classes(given.validation_csv, validation, train, list(heads)))
    else:
        weights = list(heads.values())
        train, validation = labelled_text.split(rows, given.validation_share, weights.index(max(weights)))
    model = _model(given, [row.text for row in train])
    splits = {"train": train, "validation": validation}
    prepared = write(given.data_dir, given.model_name, model, heads, splits)
    print(f"{given.data_dir}: {len(train)} texts to train, {len(validation)} to validate, for {given.model_name}")
    for name, classes in prepared.heads.items():
        more = f", … ({len(classes) - SHOWN} more)" if len(classes) > SHOWN else ""
        print(f"  {name} (weight {heads[name]:g}): {len(classes)} classes: {', '.join(classes[:SHOWN])}{more}")
    print("\n".join(length_report(_lengths_of(prepared), prepared.longest)))
    return 0


def write(
    folder: Path,
    model_name: str,
    model: Pretrained,
    heads: Mapping[str, float],
    splits: Mapping[str, Sequence[LabelledText]],
) -> PreparedText:
    """`heads`: the weight of each in the loss. Validation texts are sorted by length, for little padding."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = [sorted({row.labels[at] for rows in splits.values() for row in rows}) for at in range(len(heads))]
    files = {"tokenizer": store(folder, "tokenizer", ".json", model.tokenizer.to_str(pretty=True).encode())}
    if model.weights:
        files["weights"] = store(folder, "weights", ".safetensors", save(dict(model.weights)))
    by_length = sorted(splits["validation"], key=lambda row: len(model.tokenizer.encode(row.text).ids))
    splits = {"train": splits["train"], "validation": by_length}
    for name, rows in splits.items():
        for role, array in _arrays(rows, classes, model.tokenizer).items():
            files[f"{name}-{role}"] = store(folder, f"{name}-{role}", ".npy", _as_npy(array))
    manifest = {
        "model_name": model_name,
        "shape": asdict(model.shape),
        "heads": [
            {"name": name, "weight": weight, "classes": own}
            for (name, weight), own in zip(heads.items(), classes, strict=True)
        ],
        "texts": {name: len(rows) for name, rows in splits.items()},
        "files": files,
    }
    manifest["content_sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return PreparedText.finish(folder, manifest)


def _arrays(
    rows: Sequence[LabelledText], classes: Sequence[list[str]], tokenizer: Tokenizer
) -> dict[str, NDArray[Any]]:
    number = [{name: at for at, name in enumerate(own)} for own in classes]
    encoded = [np.array(text.ids, "<i4") for text in tokenizer.encode_batch([row.text for row in rows])]
    return {
        "tokens": np.concatenate(encoded),
        "offsets": np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])]).astype("<i8"),
        "labels": np.array([[number[at][name] for at, name in enumerate(row.labels)] for row in rows], "<i8"),
    }


def _as_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def lengths(given: argparse.Namespace) -> int:
    prepared = PreparedText.open(given.data_dir)
    found, longest = _lengths_of(prepared), prepared.longest
    if given.json:
        print(json.dumps({**length_statistics(found), "advice": advised_length(found, longest)}))
    else:
        print("\n".join(length_report(found, longest, given.max_length)))
    return 0


def _source(given: argparse.Namespace) -> tuple[Path, str, dict[str, float]]:
    """The CSV file, its column of text and its heads; the two built-in sources leave a file that one can look at."""
    if given.csv == "demo":
        name, text_column, heads = "demo", failure_texts.COLUMNS[0], failure_texts.HEADS
        content = labelled_text.as_csv(failure_texts.COLUMNS, failure_texts.rows(given.rows))
    elif given.csv == "spanish":
        print("Spanish text from Debian's packages:")
        name, text_column, heads = "spanish", spanish.PASSAGES, spanish.HEADS
        content = labelled_text.as_csv((text_column, *heads), spanish.passages(spanish.fetch(print)))
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
    sizes.of(given.model_name)  # report an unknown name before the tokenizer is trained
    if given.vocab_size < len(SPECIAL) + 100:
        raise OptionError(f"--vocab-size {given.vocab_size}: letters and marks alone need about 100")
    tokenizer = train_wordpiece(texts, given.vocab_size)
    shape = pretrained.random_shape(given.model_name, tokenizer.get_vocab_size())
    return Pretrained(shape=shape, weights={}, tokenizer=tokenizer)


def _unknown_classes(
    path: Path, validation: Sequence[LabelledText], train: Sequence[LabelledText], heads: list[str]
) -> list[str]:
    """Return a message for each validation row with a class that is not among the training texts."""
    known = [{row.labels[at] for row in train} for at in range(len(heads))]
    return [
        f"{path}:{row.line}: {head} {label!r} is no class of the training texts"
        for row in validation
        for at, (head, label) in enumerate(zip(heads, row.labels, strict=True))
        if label not in known[at]
    ]


def _lengths_of(prepared: PreparedText) -> NDArray[np.int64]:
    found = np.concatenate([Rows(prepared, split, prepared.longest).full_lengths for split in SPLITS])
    if not len(found):
        raise ConfigurationError(f"{prepared.folder}: no texts")
    return found
