"""The stream: each trace once an epoch over ranks and workers, a bounded buffer, and resume to the very trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from trainer.data.batch import Batch
from trainer.data.trace_stream import (
    PreprocessedGNNDataset,
    PreprocessedLSTMDataset,
    Reference,
    StreamedTraces,
    StreamSettings,
)
from trainer.data.trace_tensors import open_folder
from trainer.errors import ConfigurationError, TrainerError

SIZES = (40, 7, 25, 1, 30, 17)


def write(folder: Path, sizes: tuple[int, ...] = SIZES, name: str = "lstm-{}.pt") -> list[tuple[str, int]]:
    """Traces that each hold their own number, twice."""
    folder.mkdir(exist_ok=True, parents=True)
    begin, files = 0, []
    for at, size in enumerate(sizes):
        traces = [
            {
                "events": torch.tensor([number, number]),
                "features": torch.tensor([[1.0], [float(number)]]),
                "label": torch.tensor(number % 3 == 0),
            }
            for number in range(begin, begin + size)
        ]
        path = folder / name.format(at)
        torch.save(traces, path)
        files.append((str(path), size))
        begin += size
    return files


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, int]]:
    return write(tmp_path)


TOTAL = sum(SIZES)


def number(sample: Batch) -> int:
    return int(sample[0][0])


def numbers(batches: Iterator[Batch]) -> list[int]:
    return [int(events[0]) for batch in batches for events in batch[0]]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_each_trace_comes_once_in_each_epoch_wherever(
    files: list[tuple[str, int]], workers: int, world_size: int
) -> None:
    """Parts of an epoch, as all workers of all ranks have them. Without processes: a part is a rank to the dataset."""
    parts = world_size * max(1, workers)
    for epoch in range(2):
        seen: Counter[int] = Counter()
        for part in range(parts):
            mine = TOTAL * (part + 1) // parts - TOTAL * part // parts
            reading = StreamSettings(buffer=10, rank=part, world_size=parts, endless=True)
            seen.update(
                number(sample) for sample in islice(StreamedTraces(files, reading), epoch * mine, (epoch + 1) * mine)
            )
        assert sorted(seen) == list(range(TOTAL))
        assert set(seen.values()) == {1}


def test_worker_processes_share_an_epoch(tmp_path: Path) -> None:
    files = write(tmp_path)
    dataset = StreamedTraces(files, StreamSettings(buffer=10))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=dataset.collate)
    first, second = numbers(iter(loader)), numbers(iter(loader))
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    assert first != second, "workers start again with each epoch, and yet the order is another"


def test_epochs_have_orders_of_their_own_and_a_seed_repeats_them(files: list[tuple[str, int]]) -> None:
    def order(seed: int) -> list[int]:
        reading = StreamSettings(buffer=1000, seed=seed, endless=True)
        return [number(sample) for sample in islice(StreamedTraces(files, reading), 2 * TOTAL)]

    found = order(1)
    assert found == order(1) != order(2)
    assert found[:TOTAL] != found[TOTAL:]


def test_the_buffer_is_bounded(tmp_path: Path) -> None:
    """No trace of one file in order can come earlier than the buffer lets it."""
    files = write(tmp_path, (500,))
    order = [number(sample) for sample in StreamedTraces(files, StreamSettings(buffer=20))]
    assert sorted(order) == list(range(500))
    assert order != sorted(order)
    assert all(trace <= place + 20 for place, trace in enumerate(order))


def test_for_validation_the_order_is_the_files_own(files: list[tuple[str, int]]) -> None:
    dataset = StreamedTraces(files, StreamSettings(buffer=0))
    for _ in range(2):
        assert [number(sample) for sample in dataset] == list(range(TOTAL))
    assert [number(dataset.sample(at)) for at in range(TOTAL)] == list(range(TOTAL))


@pytest.mark.parametrize("buffer", [0, 1, 10, 1000])
@pytest.mark.parametrize("skip", [0, 1, 24, 59, 60, 61, 130, 259])
def test_after_a_resume_the_very_next_trace_comes(files: list[tuple[str, int]], buffer: int, skip: int) -> None:
    def order(skip: int, count: int) -> list[int]:
        reading = StreamSettings(buffer=buffer, rank=1, world_size=2, endless=True, skip=skip)
        return [number(sample) for sample in islice(StreamedTraces(files, reading), count)]

    assert order(skip, 70) == order(0, skip + 70)[skip:]


@pytest.mark.parametrize("done", [1, 2, 5])
def test_a_resume_continues_with_the_worker_whose_turn_it_was(files: list[tuple[str, int]], done: int) -> None:
    def batches(skip: int, count: int) -> list[int]:
        dataset = StreamedTraces(files, StreamSettings(buffer=10, endless=True, skip=skip, batch_size=4))
        loader = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=dataset.collate)
        return numbers(islice(iter(loader), count))

    assert batches(done * 4, 6) == batches(0, done + 6)[done * 4 :]


def test_what_is_skipped_is_not_read(tmp_path: Path) -> None:
    """The first files may even be gone."""
    files = write(tmp_path, (50, 50, 50))
    reading = StreamSettings(buffer=5, endless=True, skip=140)
    expected = [
        number(sample) for sample in islice(StreamedTraces(files, StreamSettings(buffer=5, endless=True)), 140, 150)
    ]
    last = {files[trace // 50][0] for trace in expected}
    for path, _ in files:
        if path not in last:
            Path(path).unlink()
    assert len(last) < 3
    assert [number(sample) for sample in islice(StreamedTraces(files, reading), 10)] == expected


def test_only_one_file_is_open(files: list[tuple[str, int]]) -> None:
    class Watched(StreamedTraces):
        opened: list[str]

        def _read(self, item: Reference | Batch) -> Batch:
            sample = super()._read(item)
            if isinstance(item, Reference):
                assert self._open is not None
                self.opened = [*getattr(self, "opened", []), str(self._open.path)]
            return sample

    dataset = Watched(files, StreamSettings(buffer=1000))
    assert len(list(dataset)) == TOTAL
    changes = sum(a != b for a, b in zip(dataset.opened, dataset.opened[1:], strict=False))
    assert changes == len(files) - 1, "file after file, each once"


def test_fewer_traces_than_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fewer --num-workers"):
        list(StreamedTraces(write(tmp_path, (2,)), StreamSettings(rank=0, world_size=3)))


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    files = write(tmp_path, (3,))
    Path(files[0][0]).unlink()
    with pytest.raises(TrainerError, match=r"lstm-0\.pt: No such file"):
        list(StreamedTraces(files, StreamSettings()))


# ── Folders, and the seed's own classes ───────────────────────────────────────────────────────────


def test_the_seeds_classes_serve_a_plain_data_loader(tmp_path: Path) -> None:
    write(tmp_path, (30, 30, 30))
    write(tmp_path, (10, 10), name="gnn-{}.pt")
    train = PreprocessedLSTMDataset(tmp_path, shuffle_buffer_size=16)
    validation = PreprocessedLSTMDataset(tmp_path, shuffle_buffer_size=0, split="validation")
    with pytest.raises(TypeError):
        len(train)  # type: ignore[arg-type]
    seen = numbers(iter(DataLoader(train, batch_size=8, num_workers=0, collate_fn=train.collate)))
    held_back = [number(sample) for sample in validation]
    assert sorted(seen + held_back) == list(range(90))
    assert held_back == sorted(held_back)

    graphs = PreprocessedGNNDataset(tmp_path, shuffle_buffer_size=16)
    (batch,) = DataLoader(graphs, batch_size=100, collate_fn=graphs.collate)
    events, features, edges, graph, labels = batch
    assert (len(labels), len(events), len(features)) == (10, 20, 20)
    assert edges.tolist() == [list(range(0, 20, 2)), list(range(1, 20, 2))]
    assert graph.tolist() == [at // 2 for at in range(20)]


def test_a_folder_is_surveyed_once(tmp_path: Path) -> None:
    write(tmp_path / "train", (30, 30))
    write(tmp_path / "val", (12,))
    found = open_folder(tmp_path, "lstm")
    assert (found.samples("train"), found.samples("validation")) == (60, 12)
    assert found.positives == {"train": 20, "validation": 4}
    assert (found.event_kinds, found.features) == (60, 1)
    saved = tmp_path / "lstm-traces-index.json"
    saved.write_text(saved.read_text().replace('"event_kinds": 60', '"event_kinds": 61'))
    assert open_folder(tmp_path, "lstm").event_kinds == 61, "read from what was kept"
    write(tmp_path / "train", (30, 31))
    assert open_folder(tmp_path, "lstm").event_kinds == 61, "surveyed again: a file has changed"
    assert open_folder(tmp_path, "lstm").samples("train") == 61


def test_one_file_alone_cannot_be_split(tmp_path: Path) -> None:
    write(tmp_path, (5,))
    with pytest.raises(ConfigurationError, match="at least two"):
        open_folder(tmp_path, "lstm")
