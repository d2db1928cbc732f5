"""Traces in memory: the calls of a program in their order with their callers, and whether it was anomalous.

A call is one row of 32-bit words: its event (the called function), its parent (the place in the trace of the calling
call, -1 for none), and its features' bits. One row is one copy, for any number of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer.data.order import Indices

if TYPE_CHECKING:
    from trainer.data.batch import Batch

Rows = NDArray[np.int32]
Floats = NDArray[np.float32]

UNKNOWN = 0
"""The event of all calls that training never saw."""


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Traces with their calls one after another."""

    calls: Rows
    """(calls, 2 + features)"""
    lengths: Indices
    labels: Floats
    """1 for an anomaly, 0 for none, NaN where unknown."""

    @classmethod
    def of(cls, events: Indices, parents: Indices, features: Floats, lengths: Indices, labels: Floats) -> Traces:
        calls = np.empty((len(events), 2 + features.shape[1]), np.int32)
        calls[:, 0], calls[:, 1] = events, parents
        calls[:, 2:] = features.view(np.int32)
        return cls(calls=calls, lengths=lengths, labels=labels)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def features(self) -> Floats:
        return self.calls[:, 2:].view(np.float32)

    def starts(self) -> Indices:
        return np.cumsum(self.lengths) - self.lengths

    def take(self, indices: Indices) -> Traces:
        lengths = self.lengths[indices]
        calls = self.calls.take(rows_of(self.starts()[indices], lengths), axis=0)
        return Traces(calls=calls, lengths=lengths, labels=self.labels[indices])

    def first(self, longest: int) -> Traces:
        """Cut each trace to its first calls."""
        lengths = np.minimum(self.lengths, longest)
        calls = self.calls.take(rows_of(self.starts(), lengths), axis=0)
        return Traces(calls=calls, lengths=lengths, labels=self.labels)


def rows_of(starts: Indices, lengths: Indices) -> Indices:
    """Numbers of the rows of some ranges, one range after another."""
    before = np.cumsum(lengths) - lengths
    rows: Indices = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return rows


def join(parts: Sequence[Traces]) -> Traces:
    return Traces(
        calls=np.concatenate([part.calls for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


def sequences(traces: Traces) -> Batch:
    """Build the batch of a recurrent model: events and features padded to the longest trace, the lengths, the
    labels."""
    import torch

    count, longest, width = len(traces), int(traces.lengths.max(initial=0)), traces.calls.shape[1] - 2
    rows = rows_of(np.arange(count) * longest, traces.lengths)
    events = np.zeros((count, longest), np.int32)
    events.reshape(-1)[rows] = traces.calls[:, 0]
    features = np.zeros((count, longest, width), np.float32)
    features.reshape(count * longest, width)[rows] = traces.features
    return tuple(torch.from_numpy(part) for part in (events, features, traces.lengths, traces.labels))


def graphs(traces: Traces) -> Batch:
    """Build the batch of a graph model: one large graph of many parts; events, features, edges from caller to called,
    the graph of each call, and the label of each graph."""
    import torch

    parents = traces.calls[:, 1]
    called = np.flatnonzero(parents >= 0)
    caller = parents[called] + np.repeat(traces.starts(), traces.lengths)[called]
    graph = np.repeat(np.arange(len(traces)), traces.lengths)
    parts = (traces.calls[:, 0].copy(), np.ascontiguousarray(traces.features), np.stack([caller, called]), graph)
    return (*(torch.from_numpy(part) for part in parts), torch.from_numpy(traces.labels))
