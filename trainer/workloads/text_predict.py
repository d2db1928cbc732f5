"""`text predict`: a CSV file in, the same with predicted labels and their probabilities out."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer import checkpoint_folder
from trainer.data.files import write_atomic
from trainer.data.labelled_text import must_be_right, read_table
from trainer.engine.checkpoints.state_file import must_fit_in, read_state
from trainer.errors import ConfigurationError
from trainer.models.encoder import Dropout, Encoder, EncoderShape
from trainer.models.pretrained import random_shape


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """A trained encoder with all that it needs."""

    encoder: Encoder
    tokenizer: Tokenizer
    classes: dict[str, list[str]]
    max_length: int
    padding_id: int


def predict(given: argparse.Namespace) -> int:
    predictor = open_checkpoint(given.checkpoint)
    table, wrong = read_table(given.csv, (given.text_column,))
    must_be_right(wrong)
    column = table.columns.index(given.text_column)
    found = probabilities(predictor, [row[column] for row in table.rows], given.batch_size)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.columns, *_columns(predictor, all_classes=given.all_probabilities)])
    for number, row in enumerate(table.rows):
        writer.writerow([*row, *_cells(predictor, [own[number] for own in found], all_classes=given.all_probabilities)])
    if given.out:
        write_atomic(given.out, text.getvalue().encode())
        print(f"{given.out}: {len(table.rows)} texts, heads {', '.join(predictor.classes)}")
    else:
        sys.stdout.write(text.getvalue())
    return 0


def open_checkpoint(path: Path) -> Predictor:
    found = checkpoint_folder.locate(path, lambda line: print(line, file=sys.stderr))
    identity = found.manifest.identity
    if identity["workload"] != "text":
        raise ConfigurationError(f"{found.path}: a checkpoint of {identity['workload']}, not of text")
    about = json.loads((found.path / "text.json").read_text("utf-8"))
    heads = {head["name"]: list(head["classes"]) for head in about["heads"]}
    classes = {name: heads[name] for name in str(identity["heads"]).split(",")}
    shape = EncoderShape(**about["shape"])
    if identity["model_name"] != about["model_name"]:
        shape = random_shape(identity["model_name"], shape.vocab_size)
    encoder = Encoder(shape, sum(map(len, classes.values())), Dropout())
    state = read_state(found.state_file)
    with must_fit_in(found.state_file):
        encoder.load_state_dict(state["model"])
    encoder.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Predictor(
        encoder=encoder,
        tokenizer=Tokenizer.from_file(str(found.path / "tokenizer.json")),
        classes=classes,
        max_length=int(identity["max_length"]),
        padding_id=shape.padding_id,
    )


@torch.inference_mode()
def probabilities(predictor: Predictor, texts: Sequence[str], batch_size: int) -> list[NDArray[np.float32]]:
    """(texts, classes) for each head. Texts are grouped by length, whatever their order."""
    predictor.tokenizer.enable_truncation(predictor.max_length)
    encoded = [text.ids for text in predictor.tokenizer.encode_batch(list(texts))]
    lengths = np.array([len(ids) for ids in encoded], np.int64)
    sizes = [len(names) for names in predictor.classes.values()]
    found = torch.empty(len(texts), sum(sizes))
    device = predictor.encoder.heads.weight.device
    by_length = np.argsort(lengths, kind="stable")
    for at in range(0, len(texts), batch_size):
        rows = by_length[at : at + batch_size]
        width = int(lengths[rows].max())
        tokens = torch.tensor([[*encoded[n], *[predictor.padding_id] * (width - len(encoded[n]))] for n in rows])
        mask = torch.from_numpy(np.arange(width) < lengths[rows, None])[:, None, None, :]
        logits = predictor.encoder(tokens.to(device), mask.to(device))
        parts = [own.softmax(dim=1) for own in torch.split(logits.float(), sizes, dim=1)]
        found[torch.from_numpy(rows)] = torch.cat(parts, dim=1).cpu()
    return [own.numpy() for own in torch.split(found, sizes, dim=1)]


def _columns(predictor: Predictor, *, all_classes: bool) -> list[str]:
    columns = []
    for head, names in predictor.classes.items():
        columns += [f"{head}_predicted", f"{head}_probability"]
        columns += [f"{head}_p:{name}" for name in names] if all_classes else []
    return columns


def _cells(predictor: Predictor, found: Sequence[NDArray[np.float32]], *, all_classes: bool) -> list[str]:
    cells = []
    for names, chances in zip(predictor.classes.values(), found, strict=True):
        best = int(chances.argmax())
        cells += [names[best], f"{chances[best]:.4f}"]
        cells += [f"{chance:.4f}" for chance in chances] if all_classes else []
    return cells
