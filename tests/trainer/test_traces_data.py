"""Traces from files, recordings and tensors to shards, and from shards to batches."""

from __future__ import annotations

import json
import os
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.forked import alone
from tests.trainer.trace_generator import generate
from trainer.data import trace_files, trace_tensors
from trainer.data.order import BlockShuffled
from trainer.data.trace_files import Trace, Vocabulary
from trainer.data.trace_recorder import record
from trainer.data.trace_shards import MappedTraces, PreparedTraces, TraceSource, prepare
from trainer.data.traces import Traces, graphs, sequences
from trainer.errors import ConfigurationError

JSON_LINES = [
    {"id": "a", "events": ["get", "query", "send"], "parents": [-1, 0, 0], "features": {"us": [9, 5, 1]}, "label": 0},
    {"id": "b", "events": ["get", "fail"], "features": {"us": [2, 1]}, "label": 1},
]
CSV = "trace,event,parent,us,label\na,get,-1,9,0\na,query,0,5,0\na,send,0,1,0\nb,get,,2,1\nb,fail,0,1,1\n"


@pytest.fixture
def json_lines(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(map(json.dumps, JSON_LINES)), "utf-8")
    return path


def test_json_lines_and_csv_say_the_same(json_lines: Path, tmp_path: Path) -> None:
    table = tmp_path / "traces.csv"
    table.write_text(CSV, "utf-8")
    from_json, from_csv = list(trace_files.read(json_lines)), list(trace_files.read(table))
    assert from_json == from_csv
    assert from_json[0].parents == [-1, 0, 0]
    assert from_json[1].parents == [-1, 0], "without parents a trace is a chain"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "traces.jsonl:3: not a trace"),
        ('{"events": []}', "traces.jsonl:3: a trace without a call"),
        ('{"events": ["a", "b"], "parents": [1, -1]}', "call 0 names parent 1"),
        ('{"events": ["a"], "features": {"us": [1, 2]}}', "1 events, but not as many us"),
    ],
)
def test_a_wrong_line_is_named(json_lines: Path, line: str, message: str) -> None:
    with json_lines.open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ConfigurationError, match=message):
        list(trace_files.read(json_lines))


def traces_of(rows: list[Trace]) -> Traces:
    return Vocabulary(events={}, features=["us"], grows=True).encode(rows)


def test_batches_for_both_models(json_lines: Path) -> None:
    both = traces_of(list(trace_files.read(json_lines)))
    events, features, lengths, labels = sequences(both)
    assert events.tolist() == [[1, 2, 3], [1, 4, 0]]
    assert features.squeeze(2).tolist() == [[9, 5, 1], [2, 1, 0]]
    assert (lengths.tolist(), labels.tolist()) == ([3, 2], [0, 1])

    events, features, edges, graph, labels = graphs(both)
    assert events.tolist() == [1, 2, 3, 1, 4]
    assert edges.tolist() == [[0, 0, 3], [1, 2, 4]], "from caller to called, each graph's calls after the one before's"
    assert graph.tolist() == [0, 0, 0, 1, 1]


def test_an_event_that_training_never_met_is_unknown_and_a_missing_feature_is_named() -> None:
    trained = Vocabulary(events={"get": 1}, features=["us"])
    rows = [Trace(id="x", events=["get", "new"], parents=[-1, 0], features={"us": [1, 2]})]
    assert trained.encode(rows).calls[:, 0].tolist() == [1, 0]
    with pytest.raises(ConfigurationError, match="trace y: it lacks the feature 'us'"):
        trained.encode([Trace(id="y", events=["get"], parents=[-1])])


def small_shards(count: int, folder: Path) -> tuple[MappedTraces, Traces]:
    """Split over several shards, and all of it in memory to compare with."""
    source = generate(count, 3)
    chunks = list(source.chunks)
    prepared, new = prepare(
        TraceSource(description=source.description, chunks=chunks, events=source.events, features=source.features),
        folder,
    )
    assert new
    return MappedTraces(prepared, "train", 1000), chunks[0]


def test_shards_give_each_trace_as_it_was(tmp_path: Path) -> None:
    mapped, written = small_shards(3000, tmp_path)
    saved = MappedTraces(PreparedTraces.open(tmp_path), "validation", 1000)
    assert len(mapped) + len(saved) == 3000
    assert 200 < len(saved) < 400
    chosen = np.array([5, 0, len(mapped) - 1, 5])
    taken = mapped.take(chosen)
    everything = {
        calls.tobytes(): label
        for calls, label in zip(np.split(written.calls, np.cumsum(written.lengths)[:-1]), written.labels, strict=True)
    }
    for calls, label in zip(np.split(taken.calls, np.cumsum(taken.lengths)[:-1]), taken.labels, strict=True):
        assert everything[calls.tobytes()] == label
    assert (mapped.lengths(chosen) == taken.lengths).all()
    assert (taken.take(np.array([0])).calls == taken.take(np.array([3])).calls).all()


def test_many_shards_are_one_split(tmp_path: Path) -> None:
    source = generate(2_000, 3)
    big = prepare(source, tmp_path / "big")[0]
    (shard,) = big.split("train")["shards"]
    data = MappedTraces(big, "train", 50)
    # The same file under three entries: a split of three shards.
    three = {**big.manifest, "splits": {"train": {"shards": [shard] * 3}}}
    (tmp_path / "big" / "manifest.json").write_text(json.dumps(three))
    tripled = MappedTraces(PreparedTraces.open(tmp_path / "big"), "train", 50)
    indices = np.random.default_rng(0).integers(0, 3 * len(data), 500)
    expected = data.take(indices % len(data))
    found = tripled.take(indices)
    assert (found.calls == expected.calls).all()
    assert (found.labels == expected.labels).all()
    assert found.lengths.max() == 50


def test_the_same_source_stays_and_a_broken_folder_is_made_again(tmp_path: Path) -> None:
    prepare(generate(500, 1), tmp_path)
    assert prepare(generate(500, 1), tmp_path)[1] is False
    assert prepare(generate(500, 2), tmp_path)[1] is True
    shard = next(tmp_path.glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(ConfigurationError, match=r"expected \d+ bytes, found"):
        PreparedTraces.open(tmp_path)
    assert prepare(generate(500, 2), tmp_path)[1] is True
    assert len(list(tmp_path.glob("*.traces"))) == 2, "nothing is left of earlier preparations"


def test_an_interrupted_preparation_leaves_what_was_there(tmp_path: Path) -> None:
    prepare(generate(500, 1), tmp_path)
    before = PreparedTraces.open(tmp_path).manifest

    def breaks() -> Iterator[Traces]:
        yield from generate(500, 2).chunks
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        prepare(TraceSource(description={"other": 1}, chunks=breaks(), events=[], features=["duration_us"]), tmp_path)
    assert PreparedTraces.open(tmp_path).manifest == before


def test_memory_is_the_batchs_not_the_datas(tmp_path: Path) -> None:
    def peak(traces: int) -> int:
        data = MappedTraces(prepare(generate(traces, 1), tmp_path / str(traces))[0], "train", 256)
        order = BlockShuffled(len(data), 1)
        tracemalloc.start()
        for step in range(len(data) // 256):
            sequences(data.take(order.take(step * 256, 256)))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10_000)
    assert peak(60_000) < 1.3 * peak(10_000)


def test_recorded_traces_are_trees_with_time_in_them() -> None:
    recorded = list(record(60, 3))
    again = list(record(60, 3))
    assert [trace.label for trace in recorded] == [trace.label for trace in again]
    assert 0 < sum(trace.label for trace in recorded) < 30
    for trace in recorded:
        durations = trace.features["duration_us"]
        assert all(-1 <= parent < place for place, parent in enumerate(trace.parents))
        assert all(durations[p] >= durations[c] > 0 for c, p in enumerate(trace.parents) if p >= 0)
    assert not any("fault" in event for trace in recorded for event in trace.events)


# ── Preprocessed tensors ──────────────────────────────────────────────────────────────────────────

EVENTS, FEATURES, LABELS = [[3, 1, 2], [4, 5]], [[[0.5], [1.0], [2.0]], [[3.0], [4.0]]], [0, 1]
FORMS = {
    "list": [
        {"events": torch.tensor(e), "features": torch.tensor(f), "label": torch.tensor(y)}
        for e, f, y in zip(EVENTS, FEATURES, LABELS, strict=True)
    ],
    "padded": {
        "sequences": torch.tensor([[3, 1, 2], [4, 5, 0]]),
        "lengths": torch.tensor([3, 2]),
        "features": torch.tensor([[[0.5], [1.0], [2.0]], [[3.0], [4.0], [0.0]]]),
        "labels": torch.tensor(LABELS),
    },
    "joined": {
        "events": torch.tensor([3, 1, 2, 4, 5]),
        "offsets": torch.tensor([0, 3, 5]),
        "x": torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0]),
        "y": torch.tensor(LABELS),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_tensor_file_reads_alike(form: str, tmp_path: Path) -> None:
    torch.save(FORMS[form], tmp_path / "traces.pt")
    file = trace_tensors.TensorFile(tmp_path / "traces.pt")
    rows = [file.row(number) for number in range(len(file))]
    assert [row.events.tolist() for row in rows] == EVENTS
    assert [row.features.tolist() for row in rows] == FEATURES
    assert [row.label.item() for row in rows] == LABELS
    assert rows[0].edges.tolist() == [[0, 1], [1, 2]]
    assert file.traces().calls[:, :2].tolist() == [[3, -1], [1, 0], [2, 1], [4, -1], [5, 0]]
    cut = rows[0].first(2)
    assert (cut.events.tolist(), cut.edges.tolist()) == ([3, 1], [[0], [1]])


def test_a_graph_that_is_no_tree_is_for_the_stream(tmp_path: Path) -> None:
    ring = {"x": torch.ones(3, 2), "edge_index": torch.tensor([[0, 1, 2], [1, 2, 0]]), "y": torch.tensor(1)}
    torch.save([ring], tmp_path / "gnn.pt")
    file = trace_tensors.TensorFile(tmp_path / "gnn.pt")
    assert file.row(0).edges.tolist() == [[0, 1, 2], [1, 2, 0]]
    with pytest.raises(ConfigurationError, match="--loader stream"):
        file.traces()


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no tensors")
    with pytest.raises(ConfigurationError, match=r"text\.pt: no list or dictionary"):
        trace_tensors.TensorFile(tmp_path / "text.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(ConfigurationError, match="found Tensor"):
        trace_tensors.TensorFile(tmp_path / "tensor.pt")
    torch.save({"lengths": torch.ones(2)}, tmp_path / "nothing.pt")
    with pytest.raises(ConfigurationError, match="expected tensors `events`"):
        trace_tensors.TensorFile(tmp_path / "nothing.pt")


def read_within(path: Path, limit: str, spare: int) -> str:
    """The error of a second reading, for which the system grants little beyond what the first one has left."""
    trace_tensors.TensorFile(path)
    if limit == "files":
        following = os.open("/", os.O_RDONLY)
        os.close(following)
        resource.setrlimit(resource.RLIMIT_NOFILE, (following + spare,) * 2)
    else:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + spare,) * 2)
    try:
        trace_tensors.TensorFile(path)
    except Exception as error:
        return f"{type(error).__name__} {type(error.__context__).__name__} {error}"
    return "none"


MANY_FILES = "x.pt: too many open files: fewer --num-workers (2), or a higher limit (ulimit -n 65536)"
NO_MEMORY = "x.pt: no memory left for this file: fewer --num-workers (1), a smaller --batch-size (16), smaller files"


@pytest.mark.parametrize(
    ("content", "limit", "spare", "cause", "message"),
    [
        pytest.param(torch.zeros(1), "files", 0, "OSError", MANY_FILES, id="opened"),
        pytest.param(torch.zeros(1), "files", 1, "RuntimeError", MANY_FILES, id="mapped by torch"),
        pytest.param(torch.zeros(1 << 24), "memory", 1 << 20, "RuntimeError", NO_MEMORY, id="its tensors"),
        pytest.param("x" * (1 << 26), "memory", 5 << 25, "RuntimeError", NO_MEMORY, id="its pickle"),
        pytest.param("x" * (1 << 26), "memory", 7 << 25, "MemoryError", NO_MEMORY, id="its objects"),
    ],
)
def test_a_limit_of_the_system_is_reported(
    content: object, limit: str, spare: int, cause: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save([{"events": torch.ones(1), "more": content}], path)
    assert alone(read_within, path, limit, spare) == f"TrainerError {cause} {tmp_path}/{message}"
