"""Preprocessed traces: .pt files of tensors as other tools write them; docs/traces.md shows their forms."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.files import by_name_hash, write_atomic
from trainer.data.trace_files import describe
from trainer.data.trace_shards import VALIDATION_SHARE, Measure, TraceSource
from trainer.data.traces import Traces
from trainer.errors import ConfigurationError, TrainerError
from trainer.out_of_memory import is_out_of_memory

INDEX = "traces-index.json"
NAMES = {
    "events": ("events", "sequence", "sequences"),
    "features": ("features", "x"),
    "label": ("label", "labels", "y"),
}
"""Names of tensors, in a trace and in a file of many."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trace. Its tensors are in the file until they are copied."""

    events: Tensor
    features: Tensor
    edges: Tensor
    """(2, edges): from caller to called."""
    label: Tensor

    def first(self, longest: int) -> Row:
        if len(self.events) <= longest:
            return self
        edges = self.edges[:, (self.edges < longest).all(0)]
        return replace(self, events=self.events[:longest], features=self.features[:longest], edges=edges)


class TensorFile:
    """A mapped file of traces: a list of one dictionary each, or one dictionary of padded or of joined tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = _load(path)
        self._listed = isinstance(self._content, list)
        if self._listed:
            lengths = []
            for trace in self._content:
                events, features = _named(trace, "events"), _named(trace, "features")
                calls = features if events is None else events
                if calls is None:
                    raise ConfigurationError(f"{path}: a trace with neither `events` nor `features`")
                lengths.append(len(calls))
            self._lengths = np.array(lengths, np.int64)
        else:
            events, lengths = _named(self._content, "events"), self._content.get("lengths")
            offsets = self._content.get("offsets")
            if events is None or (lengths is None and offsets is None):
                raise ConfigurationError(
                    f"{path}: expected tensors `events` and `lengths` or `offsets` in the dictionary"
                )
            self._padded = events.dim() == 2
            self._lengths = (lengths if offsets is None else offsets.diff()).numpy().astype(np.int64)
            self._starts = np.cumsum(self._lengths) - self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def row(self, number: int) -> Row:
        length = int(self._lengths[number])
        own = self._content[number] if self._listed else self._part(number, length)
        events, features, label = (_named(own, name) for name in NAMES)
        if "edge_index" in own:
            edges = own["edge_index"].long()
        else:
            parents = own["parents"].long() if "parents" in own else torch.arange(-1, length - 1)
            called = torch.nonzero(parents >= 0).flatten()
            edges = torch.stack([parents[called], called])
        return Row(
            events=torch.zeros(length, dtype=torch.int32) if events is None else events.int(),
            features=torch.empty(length, 0) if features is None else features.float().reshape(length, -1),
            edges=edges,
            label=torch.tensor(float("nan")) if label is None else label.float().reshape(()),
        )

    def traces(self) -> Traces:
        """Read the whole file."""
        rows = [self.row(number) for number in range(len(self))]
        features = torch.cat([row.features for row in rows]).numpy()
        return Traces.of(
            events=torch.cat([row.events for row in rows]).numpy(),
            parents=np.concatenate([_parents(row, self.path) for row in rows]),
            features=np.ascontiguousarray(features),
            lengths=self._lengths,
            labels=torch.stack([row.label for row in rows]).numpy(),
        )

    def _part(self, number: int, length: int) -> dict[str, Tensor]:
        start = int(self._starts[number])
        part: dict[str, Tensor] = {}
        for name, tensor in self._content.items():
            if name in NAMES["label"]:
                part[name] = tensor[number]
            elif name not in ("lengths", "offsets"):
                part[name] = tensor[number, :length] if self._padded else tensor[start : start + length]
        return part


def _parents(row: Row, path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    parents = np.full(len(row.events), -1, np.int64)
    caller, called = row.edges.numpy()
    if len(np.unique(called)) < len(called) or (caller >= called).any():
        raise ConfigurationError(
            f"{path}: a graph that is no tree of calls in their order cannot be prepared;"
            " train on the files as they are: --loader stream"
        )
    parents[called] = caller
    return parents


def _load(path: Path) -> Any:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch raises RuntimeError for files that it maps itself; only the message distinguishes them.
        if isinstance(error, OSError | RuntimeError) and os.strerror(errno.EMFILE) in str(error):
            raise TrainerError(
                f"{path}: too many open files: fewer --num-workers (2), or a higher limit (ulimit -n 65536)"
            ) from None
        if is_out_of_memory(error):
            raise TrainerError(
                f"{path}: no memory left for this file: fewer --num-workers (1), a smaller --batch-size (16),"
                " smaller files"
            ) from None
        if isinstance(error, OSError):
            raise ConfigurationError(f"{path}: {error.strerror or error}") from None
        raise ConfigurationError(
            f"{path}: no list or dictionary of plain tensors from torch.save ({type(error).__name__}: {error})"
        ) from None
    if isinstance(content, list) and content and all(isinstance(trace, dict) for trace in content):
        return content
    if isinstance(content, dict):
        return content
    raise ConfigurationError(
        f"{path}: expected a dictionary of tensors or a list of them, found {type(content).__name__}"
    )


def _named(tensors: Mapping[str, Any], name: str) -> Tensor | None:
    found = next((tensors[alias] for alias in NAMES[name] if alias in tensors), None)
    return found if found is None or isinstance(found, Tensor) else torch.as_tensor(found)


# ── A folder of such files ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Index of a folder's files, needed before training: built once, and kept in the folder if it is writable."""

    train: list[tuple[str, int]]
    """Paths and numbers of traces."""
    validation: list[tuple[str, int]]
    positives: dict[str, int]
    event_kinds: int
    features: int
    mean: list[float]
    deviation: list[float]

    def samples(self, split: str) -> int:
        return sum(count for _, count in getattr(self, split))


def tensor_files(folder: Path, kind: str) -> list[Path]:
    """The .pt files; where some are named after a workload's kind (lstm, gnn), those of this kind alone."""
    everything = sorted(folder.rglob("*.pt"))
    return [path for path in everything if kind in path.stem] or everything


def open_folder(folder: Path, kind: str) -> Folder:
    files = tensor_files(folder, kind)
    # Whole files, by folders `train` and `val…` if there are such, otherwise by the hash of their names.
    validation = [path for path in files if path.relative_to(folder).parts[0].startswith("val")]
    if not validation:
        validation = sorted(by_name_hash(files, folder)[: max(1, round(VALIDATION_SHARE * len(files)))])
    train = sorted(set(files) - set(validation))
    if not train or not validation:
        raise ConfigurationError(
            f"{folder}: found {len(files)} .pt files of traces; at least two are needed, one to validate"
        )
    stamp = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    index_file = folder / f"{kind}-{INDEX}"
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        index = json.loads(index_file.read_text("utf-8"))
        if index["files"] == stamp:
            return Folder(**index["found"])
    found = _survey(train, validation)
    with suppress(OSError):  # in a read-only folder: the files are read again next time
        write_atomic(index_file, json.dumps({"files": stamp, "found": asdict(found)}).encode())
    return found


def _survey(train: Sequence[Path], validation: Sequence[Path]) -> Folder:
    measure: Measure | None = None
    counts: dict[str, list[tuple[str, int]]] = {"train": [], "validation": []}
    positives = {"train": 0, "validation": 0}
    kinds = 1
    for name, paths in (("train", train), ("validation", validation)):
        for path in paths:
            file = TensorFile(path)
            counts[name].append((str(path), len(file)))
            for row in map(file.row, range(len(file))):
                measure = measure or Measure(row.features.shape[1])
                kinds = max(kinds, int(row.events.max()) + 1)
                positives[name] += int(row.label == 1)
                if name == "train":
                    measure.add(row.features.numpy())
    mean, deviation = measure.result() if measure else ([], [])
    return Folder(
        **counts,
        positives=positives,
        event_kinds=kinds,
        features=len(mean),
        mean=mean,
        deviation=deviation,
    )


def source_of(folder: Path, kind: str) -> TraceSource:
    """The same traces as a source for `prepare`."""
    files = tensor_files(folder, kind)
    if not files:
        raise ConfigurationError(f"{folder}: no .pt file in this folder")
    columns = TensorFile(files[0]).row(0).features.shape[1]

    return TraceSource(
        description=describe(files),
        chunks=(TensorFile(path).traces() for path in files),
        events=[],
        features=[f"feature {number}" for number in range(columns)],
    )
