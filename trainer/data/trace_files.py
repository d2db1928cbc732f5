"""Traces in JSON lines or CSV, read line by line. docs/traces.md shows both."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.trace_shards import TraceSource
from trainer.data.traces import UNKNOWN, Traces
from trainer.errors import ConfigurationError

CHUNK = 1024
OF_ITS_OWN = ("trace", "event", "parent", "label")
"""Columns of a CSV file other than features."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trace of a file or a recording."""

    id: str
    events: Sequence[str]
    parents: Sequence[int]
    features: dict[str, Sequence[float]] = field(default_factory=dict)
    label: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Numbers of the events and columns of the features of a model, by name."""

    events: dict[str, int]
    features: list[str]
    grows: bool = False
    """True if new names get new numbers, as in preparation; a trained model knows no others."""

    def encode(self, traces: Sequence[Trace]) -> Traces:
        numbers: list[int] = []
        parents = [parent for trace in traces for parent in trace.parents]
        features = np.empty((len(parents), len(self.features)), np.float32)
        for trace in traces:
            for event in trace.events:
                if self.grows and event not in self.events:
                    self.events[event] = len(self.events) + 1
                numbers.append(self.events.get(event, UNKNOWN))
        for column, name in enumerate(self.features):
            try:
                features[:, column] = [value for trace in traces for value in trace.features[name]]
            except KeyError:
                missing = next(trace.id for trace in traces if name not in trace.features)
                raise ConfigurationError(f"trace {missing}: it lacks the feature {name!r} that others have") from None
        return Traces.of(
            events=np.array(numbers, np.int64),
            parents=np.array(parents, np.int64),
            features=features,
            lengths=np.array([len(trace.events) for trace in traces], np.int64),
            labels=np.array([trace.label for trace in traces], np.float32),
        )


def source_of(description: dict[str, Any], traces: Iterator[Trace]) -> TraceSource:
    """Source of traces with named events; the features of the first are required of all."""
    first = next(traces, None)
    if first is None:
        raise ConfigurationError("no trace in what was given")
    vocabulary = Vocabulary(events={}, features=list(first.features), grows=True)

    def chunks() -> Iterator[Traces]:
        for chunk in chunked(chain([first], traces)):
            unlabelled = [trace.id for trace in chunk if trace.label not in (0, 1)]
            if unlabelled:
                raise ConfigurationError(f"trace {unlabelled[0]}: training needs a label, 0 or 1")
            yield vocabulary.encode(chunk)

    return TraceSource(description=description, chunks=chunks(), events=vocabulary.events, features=vocabulary.features)


def chunked(traces: Iterator[Trace]) -> Iterator[list[Trace]]:
    while chunk := list(islice(traces, CHUNK)):
        yield chunk


def describe(paths: Sequence[Path]) -> dict[str, Any]:
    """Names, sizes and times of files, which identify them without reading hundreds of gigabytes."""
    return {"files": [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]}


def files_in(given: Sequence[Path]) -> list[Path]:
    found = []
    for path in given:
        inside = sorted(file for file in path.rglob("*") if file.suffix in READERS) if path.is_dir() else [path]
        if not path.exists() or not inside:
            raise ConfigurationError(f"{path}: no such file, or no {', '.join(READERS)} file in this folder")
        found += inside
    return found


def read(path: Path) -> Iterator[Trace]:
    if path.suffix not in READERS:
        raise ConfigurationError(f"{path}: expected a name ending in {', '.join(READERS)}")
    return READERS[path.suffix](path)


def _read_json_lines(path: Path) -> Iterator[Trace]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                given = json.loads(line)
                events = [str(event) for event in given["events"]]
                trace = Trace(
                    id=str(given.get("id", f"{path.name}:{number}")),
                    events=events,
                    parents=[int(parent) for parent in given.get("parents", range(-1, len(events) - 1))],
                    features={name: [float(v) for v in values] for name, values in given.get("features", {}).items()},
                    label=float(given["label"]) if given.get("label") is not None else float("nan"),
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigurationError(f"{path}:{number}: not a trace ({error!r})") from None
            yield _checked(trace, f"{path}:{number}")


def _read_csv(path: Path) -> Iterator[Trace]:
    """Read one row per call; the rows of a trace are adjacent."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        missing = {"trace", "event"} - set(columns)
        if missing:
            raise ConfigurationError(f"{path}: the first line must name the columns; {sorted(missing)} are missing")
        names = [name for name in columns if name not in OF_ITS_OWN]
        for trace_id, group in groupby(rows, key=lambda row: row["trace"]):
            calls = list(group)
            where = f"{path}:{rows.line_num}: trace {trace_id}"
            try:
                trace = Trace(
                    id=trace_id,
                    events=[call["event"] for call in calls],
                    parents=[int(call.get("parent") or default) for default, call in enumerate(calls, start=-1)],
                    features={name: [float(call[name]) for call in calls] for name in names},
                    label=float(calls[0].get("label") or "nan"),
                )
            except (ValueError, TypeError) as error:
                raise ConfigurationError(f"{where}: {error}") from None
            yield _checked(trace, where)


READERS: dict[str, Callable[[Path], Iterator[Trace]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": _read_csv,
}


def _checked(trace: Trace, where: str) -> Trace:
    calls = len(trace.events)
    if not calls:
        raise ConfigurationError(f"{where}: a trace without a call")
    uneven = [name for name, values in trace.features.items() if len(values) != calls]
    if uneven or len(trace.parents) != calls:
        raise ConfigurationError(f"{where}: {calls} events, but not as many {uneven[0] if uneven else 'parents'}")
    late = [place for place, parent in enumerate(trace.parents) if not -1 <= parent < place]
    if late:
        raise ConfigurationError(
            f"{where}: call {late[0]} names parent {trace.parents[late[0]]}: expected -1 or an earlier call's place"
        )
    return trace
