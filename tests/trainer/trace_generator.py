"""Generated traces, for tests of size and speed: a model learns nothing useful from them."""

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
    """Make this many traces of random calls, the same for a seed."""
    return TraceSource(
        description={"generate": count, "seed": seed},
        chunks=_chunks(count, seed),
        events=[f"event-{number}" for number in range(1, EVENTS + 1)],
        features=["duration_us"],
    )


def _chunks(total: int, seed: int) -> Iterator[Traces]:
    chance, places = np.random.default_rng(seed), np.arange(LONGEST)
    # From each event one follows far oftener than the others: an order that a model can learn.
    follows = chance.permutation(EVENTS)
    for begin in range(0, total, CHUNK):
        count = min(CHUNK, total - begin)
        lengths = np.clip(chance.lognormal(3.3, 0.5, count), 4, LONGEST).astype(np.int64)
        events = np.empty((count, LONGEST), np.int64)
        events[:, 0] = chance.integers(EVENTS, size=count)
        for place in range(1, LONGEST):
            usual = chance.random(count) < 0.9
            events[:, place] = np.where(usual, follows[events[:, place - 1]], chance.integers(EVENTS, size=count))
        durations = chance.lognormal(3, 0.6, (count, LONGEST)) * (1 + events % 7)
        labels = chance.random(count) < ANOMALIES
        durations[labels[:, None] & (places == (lengths * chance.random(count)).astype(np.int64)[:, None])] *= 30
        back = np.minimum(chance.geometric(0.6, (count, LONGEST)), places)
        parents = np.where(places > 0, places - back, -1)
        inside = places < lengths[:, None]
        yield Traces.of(
            events=events[inside] + 1,
            parents=parents[inside],
            features=durations[inside][:, None].astype(np.float32),
            lengths=lengths,
            labels=labels.astype(np.float32),
        )
