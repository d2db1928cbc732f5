"""Prepared traces: memory-mapped shards and a manifest, written in one pass over any number of traces."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contract.data_parts import here
from trainer.data.order import Indices
from trainer.data.prepared_folder import TRACES, PreparedFolder, shard_limit, store
from trainer.data.traces import Floats, Rows, Traces, join, rows_of

SHARD_BYTES = 64 << 20
VALIDATION_SHARE = 0.1
RESIDENT_BYTES = 4 << 20
"""Bytes read before shards are unmapped. For a few hundred bytes a kernel may map 2 MiB, all of which counts as this
process's memory; after unmapping it is the system's cache alone."""
OPEN_SHARDS = 64
"""A window of blocks touches far fewer; a process may open some thousand files at most."""


@dataclass(frozen=True, kw_only=True)
class TraceSource:
    """Traces to prepare, read chunk by chunk."""

    description: dict[str, Any]
    """All that determines the result: an unchanged source is not read twice."""
    chunks: Iterable[Traces]
    events: Iterable[str]
    """Names of the events from 1 on, complete after the last chunk; empty for events without names."""
    features: list[str]


@dataclass(frozen=True, kw_only=True)
class PreparedTraces(PreparedFolder):
    kind = TRACES

    def split(self, name: str) -> dict[str, Any]:
        return dict(self.manifest["splits"][name])


def prepare(source: TraceSource, folder: Path) -> tuple[PreparedTraces, bool]:
    """Write shards and manifest; (data, False) if the folder holds just that already."""
    if there := PreparedTraces.existing(folder, source=source.description):
        return there, False
    folder.mkdir(parents=True, exist_ok=True)
    writers = {name: _Writer(folder, name) for name in ("train", "validation")}
    measure = Measure(len(source.features))
    kinds = 1
    for chunk in source.chunks:
        # A trace's content decides: equal traces are never in both splits.
        calls = np.split(chunk.calls, np.cumsum(chunk.lengths)[:-1])
        digests = (hashlib.blake2b(each.tobytes(), digest_size=8).digest() for each in calls)
        limit = VALIDATION_SHARE * 2**64
        held_back = np.array([int.from_bytes(digest, "big") < limit for digest in digests], np.bool_)
        for name, chosen in (("train", ~held_back), ("validation", held_back)):
            writers[name].add(chunk.take(np.flatnonzero(chosen)))
        measure.add(chunk.take(np.flatnonzero(~held_back)).features)
        kinds = max(kinds, int(chunk.calls[:, 0].max(initial=0)) + 1)
    mean, deviation = measure.result()
    manifest = {
        "source": source.description,
        "events": list(source.events),
        "event_kinds": kinds,
        "features": source.features,
        "mean": mean,
        "deviation": deviation,
        "splits": {name: writer.close() for name, writer in writers.items()},
    }
    return PreparedTraces.finish(folder, manifest), True


class Measure:
    """Mean and deviation of the logarithms of features, which span magnitudes, as models read them."""

    def __init__(self, features: int) -> None:
        self._count = 0
        self._sums = np.zeros((2, features))

    def add(self, features: Floats) -> None:
        x = np.sign(features) * np.log1p(np.abs(features), dtype=np.float64)
        self._count += len(x)
        self._sums += (x.sum(0), (x * x).sum(0))

    def result(self) -> tuple[list[float], list[float]]:
        mean, square = self._sums / max(1, self._count)
        deviation = np.sqrt(np.maximum(square - mean * mean, 0))
        return mean.tolist(), np.where(deviation > 1e-6, deviation, 1.0).tolist()


class _Writer:
    """Collects traces and writes a shard as soon as they fill one."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder, self._stem = folder, stem
        self._parts: list[Traces] = []
        self._bytes = self._stored = 0
        self._sums = {"samples": 0, "positives": 0, "calls": 0}
        self._shards: list[dict[str, Any]] = []

    def add(self, traces: Traces) -> None:
        self._parts.append(traces)
        self._bytes += traces.calls.nbytes
        if self._bytes >= shard_limit(self._stored, SHARD_BYTES):
            self._store()

    def close(self) -> dict[str, Any]:
        self._store()
        return {**self._sums, "shards": self._shards}

    def _store(self) -> None:
        traces = join(self._parts) if self._parts else None
        self._parts, self._bytes = [], 0
        if traces is None or not len(traces):
            return
        index = np.zeros((len(traces) + 1, 2), "<i8")
        index[1:, 0] = np.cumsum(traces.lengths)
        index[:-1, 1] = traces.labels
        content = index.tobytes() + traces.calls.astype("<i4").tobytes()
        self._shards.append({**store(self._folder, self._stem, ".traces", content), "samples": len(traces)})
        self._stored += len(content)
        self._sums["samples"] += len(traces)
        self._sums["positives"] += int(traces.labels.sum())
        self._sums["calls"] += len(traces.calls)


class _Shard(NamedTuple):
    begins: Indices
    """(traces + 1, 2) numbers of 64 bits: where each trace's calls begin, and its label; its calls follow them."""
    calls: Rows


class MappedTraces:
    """One split of prepared traces by number, in a few megabytes of memory for any size of the split."""

    def __init__(self, prepared: PreparedTraces, split: str, longest: int) -> None:
        self._made_of = (prepared, split, longest)
        self._folder = prepared.folder
        shards = prepared.split(split)["shards"]
        self._entries = [shards[number] for number in here(shards)]
        self._ends = np.array(list(accumulate(int(entry["samples"]) for entry in self._entries)), np.int64)
        self._words = 2 + len(prepared.manifest["features"])
        self._longest = longest
        self._touched = 0
        self._shard = lru_cache(OPEN_SHARDS)(self._open)

    def __len__(self) -> int:
        """Count the traces that are here."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __reduce__(self) -> tuple[type[MappedTraces], tuple[PreparedTraces, str, int]]:
        return MappedTraces, self._made_of

    def lengths(self, indices: Indices) -> Indices:
        found = np.empty(len(indices), np.int64)
        for number, places, rows in self._by_shard(indices):
            begins = self._shard(number).begins[:, 0]
            found[places] = begins[rows + 1] - begins[rows]
        return np.minimum(found, self._longest)

    def take(self, indices: Indices) -> Traces:
        """These traces in this order, each cut to the first calls that are allowed, with their parents."""
        parts, places = [], []
        for number, mine, rows in self._by_shard(indices):
            shard = self._shard(number)
            begins, labels = shard.begins[rows].T
            lengths = np.minimum(shard.begins[rows + 1, 0] - begins, self._longest)
            calls = shard.calls.take(rows_of(begins, lengths), axis=0)
            parts.append(Traces(calls=calls, lengths=lengths, labels=labels.astype(np.float32)))
            places.append(mine)
            self._touched += max(calls.nbytes, len(rows) * mmap.PAGESIZE)
            if self._touched > RESIDENT_BYTES:  # one call per shard; mapping again costs a page fault
                self._shard.cache_clear()
                self._touched = 0
        if len(parts) == 1:
            return parts[0]
        return join(parts).take(np.argsort(np.concatenate(places)))

    def _by_shard(self, indices: Indices) -> Iterable[tuple[int, Indices, Indices]]:
        """Yield each shard, the places in `indices` of its traces, and their numbers in the shard."""
        shards = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(shards):
            places = np.flatnonzero(shards == number)
            begin = self._ends[number - 1] if number else 0
            yield int(number), places, indices[places] - begin

    def _open(self, number: int) -> _Shard:
        entry = self._entries[number]
        with (self._folder / str(entry["file"])).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        words = 2 * (entry["samples"] + 1)
        return _Shard(
            begins=np.frombuffer(content, "<i8", words).reshape(-1, 2),
            calls=np.frombuffer(content, "<i4", offset=8 * words).reshape(-1, self._words),
        )
