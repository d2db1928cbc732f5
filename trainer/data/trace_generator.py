"""Any number of invented traces, fast: to test size and speed. What a model learns from them says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.data.trace_shards import TraceSource
from trainer.data.traces import Traces

CHUNK = 8192
EVENTS = 64
LONGEST = 96
ANOMALIES = 0.1


def generate(count: int, seed: int) -> TraceSource:
    return TraceSource(
        description={"generate": count, "seed": seed},
        chunks=_chunks(count, seed),
        events=[f"event-{number}" for number in range(1, EVENTS + 1)],
        features=["duration_us"],
    )


def _chunks(count: int, seed: int) -> Iterator[Traces]:
    chance = np.random.default_rng(seed)
    # From each event one follows far oftener than the others: an order that a model can learn.
    follows = chance.permutation(EVENTS)
    for begin in range(0, count, CHUNK):
        yield _chunk(chance, follows, min(CHUNK, count - begin))


def _chunk(chance: np.random.Generator, follows: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> Traces:
    lengths = np.clip(chance.lognormal(3.3, 0.5, count), 4, LONGEST).astype(np.int64)
    events = np.empty((count, LONGEST), np.int64)
    events[:, 0] = chance.integers(EVENTS, size=count)
    for place in range(1, LONGEST):
        usual = chance.random(count) < 0.9
        events[:, place] = np.where(usual, follows[events[:, place - 1]], chance.integers(EVENTS, size=count))
    durations = chance.lognormal(3, 0.6, (count, LONGEST)) * (1 + events % 7)
    labels = chance.random(count) < ANOMALIES
    slow = labels[:, None] & (np.arange(LONGEST) == (lengths * chance.random(count)).astype(np.int64)[:, None])
    durations[slow] *= 30
    back = np.minimum(chance.geometric(0.6, (count, LONGEST)), np.arange(LONGEST))
    parents = np.where(np.arange(LONGEST) > 0, np.arange(LONGEST) - back, -1)
    inside = np.arange(LONGEST) < lengths[:, None]
    return Traces.of(
        events=events[inside] + 1,
        parents=parents[inside],
        features=durations[inside][:, None].astype(np.float32),
        lengths=lengths,
        labels=labels.astype(np.float32),
    )
