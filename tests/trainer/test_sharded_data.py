"""Training on parts of the data: every sample is on one node, and each node reads through its own part."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from contract.cost_model.choice import choose_sync
from contract.data_parts import divide, files_of
from tests.trainer.conftest import Ranks, Result
from tests.trainer.forecasts import GIGABIT, measured, node
from tests.trainer.trace_generator import generate
from trainer.config import RankInfo, TrainOptions
from trainer.data import image_store, prepare_tokens, trace_shards
from trainer.data.image_store import PreparedImages, StoredImages
from trainer.data.images import Frame, from_folder
from trainer.data.manifests import PreparedTokens
from trainer.data.order import Bucketed, Order, Shuffled
from trainer.data.shards import Windows
from trainer.data.texts import Document
from trainer.data.trace_shards import MappedTraces, PreparedTraces
from trainer.engine.dataloader import BatchSplit
from trainer.engine.sync_plan import with_all_nodes
from trainer.errors import ConfigurationError
from trainer.workloads.vision_options import VisionOptions
from trainer.workloads.vision_training import Vision, open_pictures

PARTS = 3


def parts_of(folder: Path, to: Path) -> list[Path]:
    """The folders that nodes get."""
    manifests = divide(json.loads((folder / "manifest.json").read_text()), PARTS)
    for number, manifest in enumerate(manifests):
        part = to / str(number)
        part.mkdir(parents=True)
        for name in files_of(manifest):
            shutil.copy(folder / name, part / name)
        (part / "manifest.json").write_text(json.dumps(manifest))
    return [to / str(number) for number in range(PARTS)]


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prepare_tokens, "SHARD_TOKENS", 500)
    words = ["en", "el", "principio", "era", "la", "palabra", "y", "con", "ella", "vino"]
    text = "\n".join(" ".join(words[line * word * 37 % 101 % 10] for word in range(1, 13)) for line in range(400))
    prepare_tokens.prepare([Document(name="a.txt", text=text)], tmp_path / "Data", 300)
    return tmp_path / "Data"


def test_each_window_is_on_one_node(tokens: Path, tmp_path: Path) -> None:
    whole = Windows(PreparedTokens.open(tokens), "train", 16)
    held = [Windows(PreparedTokens.open(part), "train", 16) for part in parts_of(tokens, tmp_path / "parts")]
    assert [one.everywhere for one in held] == [len(whole)] * PARTS
    assert sum(map(len, held)) == len(whole)
    rows = [row.tobytes() for one in held for row in one.take(np.arange(len(one)))]
    assert sorted(rows) == sorted(row.tobytes() for row in whole.take(np.arange(len(whole))))
    validation = {len(Windows(PreparedTokens.open(part), "validation", 16)) for part in (tmp_path / "parts").iterdir()}
    assert validation == {len(Windows(PreparedTokens.open(tokens), "validation", 16))}


def test_a_part_without_a_whole_window_is_refused(tokens: Path, tmp_path: Path) -> None:
    parts = [PreparedTokens.open(part) for part in parts_of(tokens, tmp_path / "parts")]
    with pytest.raises(ConfigurationError, match="--seq-len 499 or less"):
        Windows(parts[0], "train", 500)


def test_each_trace_is_on_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_shards, "SHARD_BYTES", 10_000)
    source = generate(1000, 3)
    small = (chunk.take(np.arange(at, at + 100)) for chunk in source.chunks for at in range(0, len(chunk), 100))
    trace_shards.prepare(replace(source, chunks=small), tmp_path / "Data")
    whole = PreparedTraces.open(tmp_path / "Data")
    held = [PreparedTraces.open(part) for part in parts_of(tmp_path / "Data", tmp_path / "parts")]
    assert {part.split("train")["samples"] for part in held} == {whole.split("train")["samples"]}

    def rows(prepared: PreparedTraces) -> list[bytes]:
        mapped = MappedTraces(prepared, "train", 50)
        taken = mapped.take(np.arange(len(mapped)))
        return [calls.tobytes() for calls in np.split(taken.calls, np.cumsum(taken.lengths)[:-1])]

    found = [rows(part) for part in held]
    assert min(map(len, found)) > 100
    assert sorted(row for part in found for row in part) == sorted(rows(whole))


def test_each_image_is_on_one_node_with_its_label(
    picture_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Frame(stored=20, crop=16, channels=3)
    monkeypatch.setattr(image_store, "SHARD_BYTES", 5 * 20 * 20 * 3)
    image_store.prepare(from_folder(picture_folder), tmp_path / "Data", frame)
    whole = StoredImages(PreparedImages.open(tmp_path / "Data"), "train")
    folders = parts_of(tmp_path / "Data", tmp_path / "parts")
    held = [StoredImages(PreparedImages.open(part), "train") for part in folders]
    assert {PreparedImages.open(part).content for part in folders} == {PreparedImages.open(tmp_path / "Data").content}

    def seen(images: StoredImages) -> list[tuple[bytes, int]]:
        return [(images[number].tobytes(), int(images.labels[number])) for number in range(len(images))]

    assert sorted(one for part in held for one in seen(part)) == sorted(seen(whole))
    for part in held:
        assert len(part) < len(whole)
        assert part.all_labels.tolist() == whole.labels.tolist()
    # Of the classes of all nodes, as the weights of classes are the same everywhere; mixup pairs stay in the part.
    options = TrainOptions(data_dir=folders[1], run_dir=tmp_path / "run", seed=5)
    choices = VisionOptions(model="vit-mini", image_size=16, mixup=0.4, class_weights="balanced")
    workload = Vision(options, choices, open_pictures(options, choices, None, RankInfo()), RankInfo())
    assert (workload.train_samples, workload.samples_here) == (len(whole), len(held[1]))
    cut = BatchSplit(place=RankInfo(rank=1, world_size=3), seed=5, per_step=12, micro_batch=4, sharded=True)
    for request in islice(cut.requests(workload.order(5), 0), 20):
        assert len(workload.batch(request)[0]) == 4


# ── Who reads what ────────────────────────────────────────────────────────────────────────────────


Place = tuple[RankInfo, tuple[int, ...]]


def read_by(place: Place, order: Order, steps: int, shares: tuple[int, ...] = (), start: int = 0) -> list[int]:
    """Samples of a rank over so many steps of 12."""
    rank, nodes = place
    cut = BatchSplit(place=rank, seed=1, per_step=12, micro_batch=3, shares=shares, sharded=True, nodes=nodes)

    def indices() -> Iterator[int]:
        requests, taken = cut.requests(order, 12 * start), 0
        while taken < steps * cut.share:
            request = next(requests)
            taken += len(request)
            yield from request.indices.tolist()

    return list(indices())


def places(*ranks_of_nodes: int, left_out: Sequence[int] = ()) -> list[list[Place]]:
    """Ranks of each node, and the nodes of all ranks, as a group without those that are left out has them."""
    local = [(host, number) for host, count in enumerate(ranks_of_nodes) for number in range(count)]
    ranks = [one for rank, one in enumerate(local) if rank not in left_out]
    nodes = tuple(sum(ranks_of_nodes[:host]) for host, _ in ranks)
    found: list[list[Place]] = [[] for _ in ranks_of_nodes]
    for rank, (host, number) in enumerate(ranks):
        count = ranks_of_nodes[host]
        place = RankInfo(rank=rank, world_size=len(ranks), local_rank=number, local_world_size=count)
        found[host].append((place, nodes))
    return found


@pytest.mark.parametrize(
    ("ranks", "shares", "of_node"),
    [((1, 1, 1), (), (4, 4, 4)), ((1, 1), (8, 4), (8, 4)), ((2, 1), (3, 5, 4), (8, 4)), ((4,), (), (12,))],
)
@pytest.mark.parametrize("bucketed", [False, True])
def test_a_node_reads_its_part_from_end_to_end(
    ranks: tuple[int, ...], shares: tuple[int, ...], of_node: tuple[int, ...], bucketed: bool
) -> None:
    """The reading takes as many steps as its own share needs for its part, whatever the other nodes hold or take."""
    for together, mine in zip(places(*ranks), of_node, strict=True):
        samples = 6 * mine
        order = Bucketed(np.arange(samples) % 7, 3, [(0, 12)]) if bucketed else Shuffled(samples, 3)
        for epoch in range(2):
            read = Counter(index for place in together for index in read_by(place, order, 6, shares, start=6 * epoch))
            assert read == Counter(range(samples))


@pytest.mark.parametrize("left_out", [(0,), (1,), (3,), (1, 2)])
def test_a_node_reads_its_part_without_the_ranks_that_are_left_out(left_out: tuple[int, ...]) -> None:
    """Those who train are numbered without the others, whose local ranks tell nothing of this."""
    for together in places(2, 2, left_out=left_out):
        world = together[0][0].world_size
        samples = 6 * 12 * len(together) // world
        order = Shuffled(samples, 3)
        for epoch in range(2):
            read = Counter(index for place in together for index in read_by(place, order, 6, start=6 * epoch))
            assert read == Counter(range(samples))


def test_a_resumed_run_reads_on_where_it_was() -> None:
    (place,), _, _ = places(1, 1, 1)
    order = Shuffled(50, 3)
    assert read_by(place, order, 9)[5 * 4 :] == read_by(place, order, 4, start=5)


def test_nodes_with_parts_train_together(
    tokens: Path, tmp_path: Path, forked: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss falls, ranks keep the same weights, no node is left out, and a resumed run continues."""
    monkeypatch.setenv("ORCH_EVENTS", "1")
    parts_of(tokens, tmp_path / "parts")
    words = ("gpt2", "--preset", "tiny", "--seq-len", "16", "--no-compile", "--log-every", "1", "--num-workers", "0")

    def train(steps: int, *more: str) -> Result:
        run = ("--run-dir", str(tmp_path / "run"), "--max-steps", str(steps), "--checkpoint-every", "10")
        ranks = forked(3, str(tmp_path / "parts"), *words, *run, *more, module="tests.trainer.sharded_ranks")
        return ranks.result()

    first = train(20)
    assert first.code == 0, first.err
    losses = first.losses()
    assert losses[20] < losses[1] - 0.5
    assert first.events("left_out") == []
    again = train(30, "--resume", str(tmp_path / "run"))
    assert again.code == 0, again.err
    assert min(again.losses()) == 21


@pytest.mark.parametrize("link", [GIGABIT / 10, GIGABIT / 10_000])
def test_a_slow_node_is_not_left_out(link: float) -> None:
    """Its samples are nowhere else: also where the others, or one node alone, would be faster."""
    nodes = [node(0), node(1), node(2, link=link)] if link > GIGABIT / 100 else [node(0), node(1, link=link)]
    found = choose_sync(measured(nodes, samples_per_step=16))
    assert found.left_out
    together = with_all_nodes(found, equal=False)
    assert together.left_out == ()
    assert set(together.chosen.ranks) == set(range(len(nodes)))
    assert together.chosen.proven
