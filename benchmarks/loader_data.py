"""The same traces in each loader's format, in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.order import Indices
from trainer.data.trace_shards import MappedTraces, PreparedTraces, prepare
from trainer.data.traces import Traces

FILES = 16
LONGEST = 256
WORDS = 3
"""Words of 32 bits in a call: event, parent, duration."""


def mapped(folder: Path, traces: int) -> Path:
    from tests.trainer.trace_generator import generate

    prepare(generate(traces, 1), folder / f"mapped-{traces}")
    return folder / f"mapped-{traces}"


def open_mapped(folder: Path, traces: int) -> MappedTraces:
    return MappedTraces(PreparedTraces.open(folder / f"mapped-{traces}"), "train", LONGEST)


def rows(folder: Path, traces: int) -> Iterator[tuple[int, int, np.ndarray[Any, np.dtype[np.int32]], float]]:
    """(file, number, calls, label) of each training trace."""
    data = open_mapped(folder, traces)
    edges = np.linspace(0, len(data), FILES + 1).astype(int)
    for file in range(FILES):
        for number in range(edges[file], edges[file + 1]):
            one = data.take(np.array([number], np.int64))
            yield file, number, one.calls, float(one.labels[0])


def write_tensors(folder: Path, traces: int) -> Path:
    """Write a list of small dictionaries per file, as in the original guide."""
    import torch

    target = folder / f"tensors-{traces}"
    target.mkdir(parents=True, exist_ok=True)
    files: dict[int, list[dict[str, Any]]] = {}
    if len(list(target.glob("*.pt"))) < FILES:
        for file, _, calls, label in rows(folder, traces):
            features = torch.from_numpy(calls[:, 2:].copy().view(np.float32))
            trace = {"events": torch.from_numpy(calls[:, 0].copy()), "features": features, "label": torch.tensor(label)}
            files.setdefault(file, []).append(trace)
        for file, content in files.items():
            torch.save(content, target / f"{file:03d}.pt")
    return target


def write_tars(folder: Path, traces: int) -> Path:
    import webdataset

    target = folder / f"tars-{traces}"
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "done").exists():
        writers = [webdataset.TarWriter(str(target / f"{file:03d}.tar")) for file in range(FILES)]
        for file, number, calls, label in rows(folder, traces):
            writers[file].write({"__key__": f"{number:09d}", "calls": calls.tobytes(), "label": bytes([int(label)])})
        for writer in writers:
            writer.close()
        (target / "done").touch()
    return target


def write_chunks(folder: Path, traces: int) -> Path:
    from litdata.streaming.writer import BinaryWriter

    target = folder / f"chunks-{traces}"
    if not (target / "index.json").exists():
        writer = BinaryWriter(str(target), chunk_bytes="16MB")
        for _, number, calls, label in rows(folder, traces):
            writer.add_item(number, {"calls": calls.tobytes(), "label": int(label)})
        writer.done()
        writer.merge()
    return target


def joined(parts: list[tuple[bytes, int]]) -> Traces:
    """A batch from records as bytes, with NumPy on all traces at once."""
    calls = np.frombuffer(b"".join(part for part, _ in parts), np.int32).reshape(-1, WORDS)
    lengths: Indices = np.array([len(part) for part, _ in parts], np.int64) // (4 * WORDS)
    return Traces(calls=calls, lengths=lengths, labels=np.array([label for _, label in parts], np.float32))
