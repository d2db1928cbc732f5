"""Traces one by one from preprocessed files: each worker holds one file or less, and a buffer to shuffle by.

An epoch is a permutation of the files, cut into as many equal parts as there are ranks and workers, so that each
trace comes once in it, wherever. The order follows from the seed, the epoch and the number of ranks and workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, get_worker_info

from trainer.data.batch import Batch
from trainer.data.order import permutation
from trainer.data.trace_tensors import TensorFile, open_folder
from trainer.errors import ConfigurationError

BUFFER = 1000
Files = Sequence[tuple[str, int]]
"""Paths and how many traces each holds."""


class Reference(NamedTuple):
    """A trace that is not read yet."""

    path: str
    number: int


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """How a dataset is read."""

    buffer: int = BUFFER
    """Traces to choose the next one from; 0: the order of the files."""
    longest: int = 1 << 31
    """Calls of a trace that count: the first ones."""
    seed: int = 1337
    rank: int = 0
    world_size: int = 1
    endless: bool = False
    skip: int = 0
    """Traces of this rank that were read before: in batches of `batch_size`, one worker after another. For the engine
    that is a step's share: micro-batches may change from one start to the next."""
    batch_size: int = 1


def pad(samples: list[Batch]) -> Batch:
    """As traces.sequences."""
    events, features, labels = (list(parts) for parts in zip(*samples, strict=True))
    lengths = torch.tensor([len(each) for each in events])
    return (
        pad_sequence(events, batch_first=True),
        pad_sequence(features, batch_first=True),
        lengths,
        torch.stack(labels),
    )


def merge(samples: list[Batch]) -> Batch:
    """As traces.graphs."""
    events, features, edges, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(each) for each in events])
    begins = (lengths.cumsum(0) - lengths).tolist()
    moved: list[Tensor] = [each + begin for each, begin in zip(edges, begins, strict=True)]
    graph = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    return torch.cat(events), torch.cat(features), torch.cat(moved, dim=1), graph, torch.stack(labels)


class StreamedTraces(IterableDataset[Batch]):
    """Traces for a recurrent model: (events, features, label)."""

    collate = staticmethod(pad)

    def __init__(self, files: Files, reading: StreamSettings) -> None:
        self._files = list(files)
        self._reading = reading
        self._total = sum(traces for _, traces in self._files)
        self._iterations = 0
        self._open: TensorFile | None = None

    def __iter__(self) -> Iterator[Batch]:
        reading, worker = self._reading, get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        done, rest = divmod(reading.skip, reading.batch_size)
        # DataLoader asks worker 0 first; after a resume that is the worker that is next.
        turn = (mine + done) % workers
        skip = reading.batch_size * ((done - turn + workers - 1) // workers) + (rest if mine == 0 else 0)
        share = _Share(number=reading.rank * workers + turn, of=reading.world_size * workers, total=self._total)
        if not len(share):
            raise ConfigurationError(
                f"{self._total} traces are fewer than {share.of} workers of all ranks: fewer --num-workers"
            )
        if reading.endless:
            first, skip = divmod(skip, len(share))
            epochs = count(first)
        else:
            # What is new in each pass: the pass, and in a worker, which may be new itself, what DataLoader drew.
            epochs = count(self._iterations + ((worker.seed - worker.id) % (1 << 31) if worker else 0))
            self._iterations += 1
        for epoch in epochs:
            yield from self._epoch(share, epoch, skip)
            skip = 0
            if not reading.endless:
                return

    def _epoch(self, share: _Share, epoch: int, skip: int) -> Iterator[Batch]:
        """The share's traces through a shuffle buffer. What is skipped passes the buffer too, but is not read."""
        size = self._reading.buffer
        chance = _chance(self._reading.seed, epoch * share.of + share.number)
        buffer: list[Reference | Batch] = []
        for reference in chain(self._references(share, epoch), repeat(None)):
            if reference:
                buffer.append(self._read(reference) if skip <= 0 else reference)
                if len(buffer) <= size:
                    continue
            if not buffer:
                return
            item = _taken_out(buffer, next(chance)) if size else buffer.pop()
            skip -= 1
            if skip < 0:
                yield self._read(item)
            elif skip == 0:
                self._read_all(buffer)

    def _references(self, share: _Share, epoch: int) -> Iterator[Reference]:
        shuffled = permutation(self._reading.seed, epoch, len(self._files))
        files = [self._files[at] for at in shuffled] if self._reading.buffer else self._files
        begin = 0
        for path, traces in files:
            for number in range(max(0, share.begin - begin), min(traces, share.end - begin)):
                yield Reference(path, number)
            begin += traces

    def _read(self, item: Reference | Batch) -> Batch:
        if not isinstance(item, Reference):
            return item
        path, number = item
        if self._open is None or str(self._open.path) != path:
            self._open = None  # before the next is opened: never two files at once
            self._open = TensorFile(Path(path))
        return self._sample(self._open, number)

    def _read_all(self, buffer: list[Reference | Batch]) -> None:
        """File by file, as only one is open."""
        for at in sorted(
            range(len(buffer)), key=lambda at: buffer[at][:1] if isinstance(buffer[at], Reference) else ()
        ):
            buffer[at] = self._read(buffer[at])

    def _sample(self, file: TensorFile, number: int) -> Batch:
        row = file.row(number).first(self._reading.longest)
        return row.events.clone(), row.features.clone(), row.label.clone()

    def sample(self, number: int) -> Batch:
        """Trace by number, in the order of the files: for validation, which reads them in sequence."""
        ends = list(accumulate(traces for _, traces in self._files))
        at = bisect_right(ends, number)
        path, traces = self._files[at]
        return self._read(Reference(path, number - ends[at] + traces))


class StreamedGraphs(StreamedTraces):
    """Traces for a graph model: (events, features, edges, label)."""

    collate = staticmethod(merge)

    def _sample(self, file: TensorFile, number: int) -> Batch:
        row = file.row(number).first(self._reading.longest)
        return row.events.clone(), row.features.clone(), row.edges.clone(), row.label.clone()


class PreprocessedLSTMDataset(StreamedTraces):
    """The files of a folder that are not for validation, for any DataLoader; one pass for each `iter`."""

    KIND = "lstm"

    def __init__(self, directory: str | Path, shuffle_buffer_size: int = BUFFER, split: str = "train") -> None:
        files: Files = getattr(open_folder(Path(directory), self.KIND), split)
        super().__init__(files, StreamSettings(buffer=shuffle_buffer_size))


class PreprocessedGNNDataset(StreamedGraphs):
    """As PreprocessedLSTMDataset, for a graph model."""

    KIND = "gnn"

    def __init__(self, directory: str | Path, shuffle_buffer_size: int = BUFFER, split: str = "train") -> None:
        files: Files = getattr(open_folder(Path(directory), self.KIND), split)
        super().__init__(files, StreamSettings(buffer=shuffle_buffer_size))


@dataclass(frozen=True, kw_only=True)
class _Share:
    """One part of an epoch's traces; parts differ by at most one trace, in every epoch alike."""

    number: int
    of: int
    total: int

    @property
    def begin(self) -> int:
        return self.total * self.number // self.of

    @property
    def end(self) -> int:
        return self.total * (self.number + 1) // self.of

    def __len__(self) -> int:
        return self.end - self.begin


def _taken_out(buffer: list[Reference | Batch], chance: int) -> Reference | Batch:
    """One item of chance; the last one moves to its place."""
    at = chance % len(buffer)
    buffer[at], buffer[-1] = buffer[-1], buffer[at]
    return buffer.pop()


def _chance(seed: int, stream: int) -> Iterator[int]:
    generator = np.random.Philox(key=np.array([seed, stream], np.uint64))
    while True:
        yield from generator.random_raw(BUFFER).tolist()
