"""Stream of traces from preprocessed files: each worker holds at most one open file and a shuffle buffer.

An epoch is a permutation of the files, cut into one part per rank and worker: each trace comes once.
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
from trainer.data.order import permutation, span
from trainer.data.trace_tensors import TensorFile, open_folder
from trainer.errors import ConfigurationError

BUFFER = 1000
Files = Sequence[tuple[str, int]]
"""Paths and numbers of traces."""


class Reference(NamedTuple):
    """A trace before it is read."""

    path: str
    number: int


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    buffer: int = BUFFER
    """Size of the shuffle buffer; 0: the order of the files."""
    longest: int = 1 << 31
    """Calls of a trace that are read: the first ones."""
    seed: int = 1337
    rank: int = 0
    world_size: int = 1
    endless: bool = False
    skip: int = 0
    """Traces of this rank that were read before, in batches of `batch_size`, one worker after another. For the engine a
    batch is a step's share: micro-batches may change from one start to the next."""
    batch_size: int = 1


class StreamedTraces(IterableDataset[Batch]):
    """Traces for a recurrent model."""

    PARTS: tuple[str, ...] = ("events", "features", "label")

    def __init__(self, files: Files, reading: StreamSettings) -> None:
        self._files = list(files)
        self._reading = reading
        self._total = sum(traces for _, traces in self._files)
        self._iterations = 0
        self._open: TensorFile | None = None

    @staticmethod
    def collate(samples: list[Batch]) -> Batch:
        """Batch of the form of traces.sequences."""
        events, features, labels = (list(parts) for parts in zip(*samples, strict=True))
        lengths = torch.tensor([len(each) for each in events])
        padded = (pad_sequence(part, batch_first=True) for part in (events, features))
        return (*padded, lengths, torch.stack(labels))

    def __iter__(self) -> Iterator[Batch]:
        reading, worker = self._reading, get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        done, rest = divmod(reading.skip, reading.batch_size)
        # DataLoader asks worker 0 first; after a resume that is the worker that is next.
        turn = (mine + done) % workers
        skip = reading.batch_size * ((done - turn + workers - 1) // workers) + (rest if mine == 0 else 0)
        number, parts = reading.rank * workers + turn, reading.world_size * workers
        share = span(self._total, number, parts)
        if share.start == share.stop:
            raise ConfigurationError(
                f"{self._total} traces are fewer than {parts} workers of all ranks: fewer --num-workers"
            )
        if reading.endless:
            first, skip = divmod(skip, share.stop - share.start)
            epochs = count(first)
        else:
            # New in each pass: its number and, in a worker, which may be new itself, the seed that DataLoader drew.
            epochs = count(self._iterations + ((worker.seed - worker.id) % (1 << 31) if worker else 0))
            self._iterations += 1
        for epoch in epochs:
            yield from self._epoch(share, epoch, epoch * parts + number, skip)
            skip = 0
            if not reading.endless:
                return

    def _epoch(self, share: slice, epoch: int, stream: int, skip: int) -> Iterator[Batch]:
        """The share's traces through a shuffle buffer. Skipped traces pass the buffer too, but are not read."""
        size = self._reading.buffer
        chance = _chance(self._reading.seed, stream)
        buffer: list[Reference | Batch] = []
        for reference in chain(self._references(share, epoch), repeat(None)):
            if reference:
                buffer.append(self._read(reference) if skip <= 0 else reference)
                if len(buffer) <= size:
                    continue
            if not buffer:
                return
            if size:  # a random item; the last one moves to its place
                at = next(chance) % len(buffer)
                buffer[at], buffer[-1] = buffer[-1], buffer[at]
            item = buffer.pop()
            skip -= 1
            if skip < 0:
                yield self._read(item)
            elif skip == 0:  # file by file, as only one is open
                unread = [at for at, item in enumerate(buffer) if isinstance(item, Reference)]
                for at in sorted(unread, key=lambda at: buffer[at][0]):
                    buffer[at] = self._read(buffer[at])

    def _references(self, share: slice, epoch: int) -> Iterator[Reference]:
        shuffled = permutation(self._reading.seed, epoch, len(self._files))
        files = [self._files[at] for at in shuffled] if self._reading.buffer else self._files
        begin = 0
        for path, traces in files:
            for number in range(max(0, share.start - begin), min(traces, share.stop - begin)):
                yield Reference(path, number)
            begin += traces

    def _read(self, item: Reference | Batch) -> Batch:
        if not isinstance(item, Reference):
            return item
        path, number = item
        if self._open is None or str(self._open.path) != path:
            self._open = None  # before the next is opened: never two files at once
            self._open = TensorFile(Path(path))
        row = self._open.row(number).first(self._reading.longest)
        return tuple(getattr(row, part).clone() for part in self.PARTS)

    def sample(self, number: int) -> Batch:
        """Trace by number, in the order of the files: for validation, which reads them in sequence."""
        ends = list(accumulate(traces for _, traces in self._files))
        at = bisect_right(ends, number)
        path, traces = self._files[at]
        return self._read(Reference(path, number - ends[at] + traces))


class StreamedGraphs(StreamedTraces):
    """Traces for a graph model."""

    PARTS = ("events", "features", "edges", "label")

    @staticmethod
    def collate(samples: list[Batch]) -> Batch:
        """Batch of the form of traces.graphs."""
        events, features, edges, labels = zip(*samples, strict=True)
        lengths = torch.tensor([len(each) for each in events])
        begins = (lengths.cumsum(0) - lengths).tolist()
        moved: list[Tensor] = [each + begin for each, begin in zip(edges, begins, strict=True)]
        graph = torch.repeat_interleave(torch.arange(len(samples)), lengths)
        return torch.cat(events), torch.cat(features), torch.cat(moved, dim=1), graph, torch.stack(labels)


class PreprocessedLSTMDataset(StreamedTraces):
    """The files of a folder that are not for validation, for any DataLoader; one pass per `iter`."""

    KIND = "lstm"

    def __init__(self, directory: str | Path, shuffle_buffer_size: int = BUFFER, split: str = "train") -> None:
        files: Files = getattr(open_folder(Path(directory), self.KIND), split)
        super().__init__(files, StreamSettings(buffer=shuffle_buffer_size))


class PreprocessedGNNDataset(StreamedGraphs, PreprocessedLSTMDataset):
    """The same for a graph model."""

    KIND = "gnn"


def _chance(seed: int, stream: int) -> Iterator[int]:
    generator = np.random.Philox(key=np.array([seed, stream], np.uint64))
    while True:
        yield from generator.random_raw(BUFFER).tolist()
