"""Prepared texts: token ids and labels, tokenized once and mapped into memory, and the model that they are for.

Everything a training needs lies in the one folder, pretrained weights too: nodes need neither the hub nor
`transformers`. Files carry their content's hash in their name, and the manifest is replaced last.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.data.labelled_text import LabelledText
from trainer.data.order import Indices
from trainer.data.prepared_folder import store
from trainer.data.text_manifest import TextManifest

if TYPE_CHECKING:
    from trainer.models.encoder import Shape
    from trainer.models.pretrained import Pretrained

SPLITS = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class PreparedText(TextManifest):
    @property
    def sha256(self) -> str:
        """Hash of all prepared content: folders with the same hash are the same."""
        return str(self.manifest["content_sha256"])

    @property
    def tokenizer_file(self) -> Path:
        return self.file("tokenizer")

    @property
    def weights_file(self) -> Path | None:
        return self.file("weights") if self.has_weights else None

    @property
    def shape(self) -> Shape:
        from trainer.models.encoder import Shape

        return Shape(**self.manifest["shape"])

    def file(self, role: str) -> Path:
        return self.folder / str(self.manifest["files"][role]["file"])


def write(
    folder: Path,
    model_name: str,
    model: Pretrained,
    heads: Mapping[str, float],
    splits: Mapping[str, Sequence[LabelledText]],
) -> PreparedText:
    """`heads`: the weight of each in the loss. Validation is kept in the order of length: it needs no padding."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = [sorted({row.labels[at] for rows in splits.values() for row in rows}) for at in range(len(heads))]
    files = {"tokenizer": store(folder, "tokenizer", ".json", model.tokenizer.to_str(pretty=True).encode())}
    if model.weights:
        files["weights"] = store(folder, "weights", ".safetensors", _as_safetensors(model.weights))
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


class Rows:
    """The texts of one split, cut to `max_length` tokens."""

    def __init__(self, prepared: PreparedText, split: str, max_length: int) -> None:
        self._made_of = (prepared, split, max_length)
        self._padding = int(prepared.manifest["shape"]["padding_id"])
        self._tokens: NDArray[np.int32] = np.load(prepared.file(f"{split}-tokens"), mmap_mode="r")
        self._offsets: NDArray[np.int64] = np.load(prepared.file(f"{split}-offsets"))
        self.labels: NDArray[np.int64] = np.load(prepared.file(f"{split}-labels"))
        self.full_lengths: NDArray[np.int64] = np.diff(self._offsets)
        self.max_length = max_length
        self.lengths = np.minimum(self.full_lengths, max_length)

    def __reduce__(self) -> tuple[type[Rows], tuple[PreparedText, str, int]]:
        """Worker processes map the file again instead of receiving its content."""
        return Rows, self._made_of

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices, width: int) -> NDArray[np.int64]:
        """(rows, width) token ids, padded at the end."""
        tokens = np.full((len(indices), width), self._padding, np.int64)
        for at, index in enumerate(indices):
            start, end, length = self._offsets[index], self._offsets[index + 1], self.lengths[index]
            tokens[at, :length] = self._tokens[start : start + length]
            tokens[at, length - 1] = self._tokens[end - 1]  # the mark of the end stays when a text is cut
        return tokens


def _as_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _as_safetensors(weights: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    return save(dict(weights))
