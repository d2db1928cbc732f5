"""Compare trace loaders: batches per second for the LSTM, the time to resume, and memory as the data grows.

All read the same records from local files and return the same batches: padded events and features, lengths, labels.

    python -m benchmarks.loader [--data-dir DIR] [--traces N]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import loader_data
from benchmarks.report import Table
from benchmarks.side_by_side import Candidate, Comparison, compare
from benchmarks.stopwatch import Measured, Stopwatch

SEED = 1
Batches = Callable[[argparse.Namespace, int], Iterator[Any]]
"""Function of the options and the number of batches to skip (as after a resume) that yields endless batches."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=Path("Data/benchmark-loader"), metavar="DIR")
    parser.add_argument("--traces", type=int, metavar="N", help="default 100000, with --quick 5000")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N")
    parser.add_argument("--steps", type=int, metavar="N", help="batches that are timed (default 300, with --quick 20)")


def settle(given: argparse.Namespace) -> None:
    given.traces = given.traces or (5_000 if given.quick else 100_000)
    given.steps = given.steps or (20 if given.quick else 300)


def prepare(given: argparse.Namespace) -> None:
    folder = given.data_dir.resolve()
    for times in (1, 10, 100):
        loader_data.mapped(folder, given.traces // 5 * times)
    loader_data.mapped(folder, given.traces)
    loader_data.write_tensors(folder, given.traces)
    for package, write in (("webdataset", loader_data.write_tars), ("litdata", loader_data.write_chunks)):
        try:
            write(folder, given.traces)
        except ModuleNotFoundError:
            print(f"without {package}: not installed", file=sys.stderr)


# ── Ours ──────────────────────────────────────────────────────────────────────────────────────────


def _mapped(given: argparse.Namespace, skip: int, traces: int | None = None) -> Iterator[Any]:
    from trainer.data.order import BlockShuffled
    from trainer.data.traces import sequences

    data = loader_data.open_mapped(given.data_dir, traces or given.traces)
    order = BlockShuffled(len(data), SEED)
    for step in itertools.count(skip):
        yield sequences(data.take(order.take(step * given.batch_size, given.batch_size)))


def _streamed(workers: int) -> Batches:
    def batches(given: argparse.Namespace, skip: int) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        from trainer.data.trace_stream import StreamedTraces, StreamSettings
        from trainer.data.trace_tensors import TensorFile

        paths = sorted((given.data_dir / f"tensors-{given.traces}").glob("*.pt"))
        files = [(str(path), len(TensorFile(path))) for path in paths]
        reading = StreamSettings(seed=SEED, endless=True, skip=skip * given.batch_size, batch_size=given.batch_size)
        dataset = StreamedTraces(files, reading)
        yield from DataLoader(dataset, given.batch_size, num_workers=workers, collate_fn=dataset.collate)

    return batches


# ── The others. A loader that cannot resume reads earlier batches again. ──────────────────────────


def _seeds(workers: int) -> Batches:
    """An IterableDataset as in the original guide: files distributed to workers, a buffer of 1000, trace by trace."""

    def batches(given: argparse.Namespace, skip: int) -> Iterator[Any]:
        import random

        import torch
        from torch.utils.data import DataLoader, IterableDataset, get_worker_info

        class Preprocessed(IterableDataset[Any]):
            def __init__(self, files: list[Path]) -> None:
                self.files = files

            def __iter__(self) -> Iterator[Any]:
                worker = get_worker_info()
                mine = self.files[worker.id :: worker.num_workers] if worker else list(self.files)
                buffer: list[Any] = []
                while True:
                    random.shuffle(mine)
                    for path in mine:
                        for trace in torch.load(path, weights_only=True):
                            buffer.append(trace)
                            if len(buffer) >= 1000:
                                yield buffer.pop(random.randrange(len(buffer)))  # noqa: S311

        def collate(traces: list[Any]) -> Any:
            pad = torch.nn.utils.rnn.pad_sequence
            events = [trace["events"] for trace in traces]
            lengths = torch.tensor([len(each) for each in events])
            features = pad([trace["features"] for trace in traces], batch_first=True)
            return pad(events, batch_first=True), features, lengths, torch.stack([trace["label"] for trace in traces])

        files = sorted((given.data_dir / f"tensors-{given.traces}").glob("*.pt"))
        loader = DataLoader(Preprocessed(files), given.batch_size, num_workers=workers, collate_fn=collate)
        yield from itertools.islice(loader, skip, None)

    return batches


def _webdataset(workers: int) -> Batches:
    def batches(given: argparse.Namespace, skip: int) -> Iterator[Any]:
        import webdataset

        from trainer.data.traces import sequences

        tars = sorted(str(path) for path in (given.data_dir / f"tars-{given.traces}").glob("*.tar"))
        dataset = webdataset.WebDataset(tars, shardshuffle=len(tars), workersplitter=webdataset.split_by_worker)
        samples = dataset.repeat().shuffle(1000).to_tuple("calls", "label").map_tuple(bytes, lambda label: label[0])
        together = samples.batched(given.batch_size, collation_fn=lambda parts: sequences(loader_data.joined(parts)))
        yield from itertools.islice(webdataset.WebLoader(together, batch_size=None, num_workers=workers), skip, None)

    return batches


def _litdata(workers: int) -> Batches:
    def batches(given: argparse.Namespace, skip: int) -> Iterator[Any]:
        from litdata import StreamingDataLoader, StreamingDataset

        from trainer.data.traces import sequences

        def collate(samples: list[Any]) -> Any:
            return sequences(loader_data.joined([(sample["calls"], sample["label"]) for sample in samples]))

        dataset = StreamingDataset(str(given.data_dir / f"chunks-{given.traces}"), shuffle=True, seed=SEED)
        loader = StreamingDataLoader(dataset, batch_size=given.batch_size, num_workers=workers, collate_fn=collate)
        per_epoch = -(-len(dataset) // given.batch_size)
        if skip % per_epoch:
            # Its own resume: the state of a loader that was stopped there.
            loader.load_state_dict(
                {
                    "dataset": dataset.state_dict(skip % per_epoch * given.batch_size, workers, given.batch_size),
                    "current_epoch": 1,
                    "num_samples_yielded": skip % per_epoch * given.batch_size,
                    "latest_worker_idx": 0,
                }
            )
        while True:
            yield from loader

    return batches


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────


def _speed(batches: Batches) -> Callable[[argparse.Namespace], Measured]:
    """Batches a second; then, in another iterator, the time to the first batch after half an epoch was seen."""

    def measure(given: argparse.Namespace) -> Measured:
        import torch

        torch.set_num_threads(1)
        given.data_dir = given.data_dir.resolve()
        watch = Stopwatch(warmup=min(20, given.steps), steps=given.steps)
        for step, batch in enumerate(batches(given, 0), start=1):
            if len(batch[-1]) != given.batch_size and step < 2:
                raise RuntimeError(f"a batch of {len(batch[-1])}")
            if watch.after(step):
                break
        began = time.perf_counter()
        next(batches(given, given.traces // given.batch_size // 2))
        return watch.measured(given.batch_size, "traces", more={"resume ms": (time.perf_counter() - began) * 1000})

    return measure


def _memory(times: int) -> Callable[[argparse.Namespace], Measured]:
    """Read all data once: peak resident memory, and private memory at the end. The rest are pages of the mapped files,
    which the kernel can reclaim."""

    def measure(given: argparse.Namespace) -> Measured:
        import torch

        torch.set_num_threads(1)
        given.data_dir = given.data_dir.resolve()
        traces = given.traces // 5 * times
        data = loader_data.open_mapped(given.data_dir, traces)
        size = sum(path.stat().st_size for path in (given.data_dir / f"mapped-{traces}").glob("train-*"))
        before, own = _status_mib("VmRSS"), _status_mib("RssAnon")
        watch = Stopwatch(warmup=1, steps=max(2, len(data) // given.batch_size))
        for step, _ in enumerate(_mapped(given, 0, traces), start=1):
            if watch.after(step):
                break
        return watch.measured(
            given.batch_size,
            "traces",
            more={
                "data MiB": size / 2**20,
                "before MiB": before,
                "most MiB": _status_mib("VmHWM"),
                "own before MiB": own,
                "own MiB": _status_mib("RssAnon"),
            },
        )

    return measure


def _status_mib(key: str) -> float:
    """Value of this process only: `ru_maxrss` begins with that of its parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


SPEED = {
    "seed-0": _seeds(0),
    "seed-2": _seeds(2),
    "seed-4": _seeds(4),
    "stream-0": _streamed(0),
    "stream-2": _streamed(2),
    "webdataset-0": _webdataset(0),
    "webdataset-2": _webdataset(2),
    "litdata-0": _litdata(0),
    "litdata-2": _litdata(2),
    "mapped": _mapped,
}
NEEDS = {"webdataset": ("webdataset",), "litdata": ("litdata",)}
COMPARISON = Comparison(
    title="Loaders of traces",
    module="benchmarks.loader",
    candidates=(
        *(
            Candidate(name=name, measure=_speed(batches), needs=NEEDS.get(name.split("-")[0], ()))
            for name, batches in SPEED.items()
        ),
        *(Candidate(name=f"mapped-x{times}", measure=_memory(times)) for times in (1, 10, 100)),
    ),
    tables=(
        Table(
            name="speed",
            title="Speed (the number after a name: worker processes)",
            names=tuple(SPEED),
            baseline="seed-0",
        ),
        Table(
            name="memory",
            title="Memory of the mapped loader, one whole pass",
            names=("mapped-x1", "mapped-x10", "mapped-x100"),
            baseline="mapped-x1",
        ),
    ),
    arguments=arguments,
    settle=settle,
    prepare=prepare,
)


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))
