"""Workers that read a stream: as many on each rank, and the same samples a step for any micro-batch."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.conftest import AS_ONE, Call, Ranks
from tests.trainer.test_traces_stream import write
from trainer.cli import parse
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch
from trainer.engine.autotune.tuning import Bench
from trainer.engine.autotune.workers import WorkerCount
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.reporting.events import Events
from trainer.errors import OptionError
from trainer.workloads.traces import TraceOptions, TracesWorkload
from trainer.workloads.traces_gnn import GnnTraces
from trainer.workloads.traces_lstm import LstmTraces

SHARE = 20
CPU = Hardware(device=torch.device("cpu"), threads=1, dtype=torch.float32, onednn="")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """80 traces to train on in three files, which tell their own numbers, and some held back."""
    write(tmp_path / "data" / "train", (30, 30, 20), name="{}.pt")
    write(tmp_path / "data" / "val", (12,), name="{}.pt")
    return tmp_path / "data"


def workload_of(folder: Path, kind: type[TracesWorkload] = LstmTraces) -> TracesWorkload:
    return kind(
        TrainOptions(data_dir=folder, batch_size=SHARE // 2), TraceOptions(shuffle_buffer_size=7, convolution="gin")
    )


def cut_into(micro_batch: int, per_step: int = SHARE, world_size: int = 1) -> BatchSplit:
    return BatchSplit(place=RankInfo(world_size=world_size), seed=1337, per_step=per_step, micro_batch=micro_batch)


def steps(workload: TracesWorkload, cut: BatchSplit, first: int, count: int, workers: int) -> list[list[int]]:
    """The numbers of the traces of each step."""
    reports = []
    with closing(MicroBatchLoader(workload, cut, first * cut.per_step, workers=workers)) as feed:
        for _ in range(count):
            batches = [next(feed) for _ in range(cut.micro_batches)]
            assert [len(batch[-1]) for batch in batches] == cut.sizes
            reports.append([int(events[0]) for batch in batches for events in batch[0]])
    return reports


# ── The micro-batch ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_step_has_the_same_traces_for_any_micro_batch(folder: Path, workers: int) -> None:
    workload = workload_of(folder)
    whole = steps(workload, cut_into(SHARE), 0, 6, workers)
    assert {number for step in whole for number in step} == set(range(80))
    for micro_batch in (1, 8, 100):
        assert steps(workload, cut_into(micro_batch), 0, 6, workers) == whole


@pytest.mark.parametrize("done", [1, 2, 3, 5])
def test_a_resume_with_another_micro_batch_continues_with_the_very_next_trace(folder: Path, done: int) -> None:
    """Examples: after `--micro-batch-size auto`, which may choose another the next time, or after out of memory."""
    workload = workload_of(folder)
    undisturbed = steps(workload, cut_into(5), 0, 8, workers=2)
    for micro_batch in (5, 8, 2):
        assert steps(workload, cut_into(micro_batch), done, 8 - done, workers=2) == undisturbed[done:]


@pytest.mark.parametrize("kind", [LstmTraces, GnnTraces])
def test_micro_batches_from_workers_are_those_of_this_process(folder: Path, kind: type[TracesWorkload]) -> None:
    """Samples travel joined, and must come out as they went in: one worker reads what this process reads."""
    workload, cut = workload_of(folder, kind), cut_into(8)
    with (
        closing(MicroBatchLoader(workload, cut, 0, workers=0)) as here,
        closing(MicroBatchLoader(workload, cut, 0, workers=1)) as there,
    ):
        for _ in range(2 * cut.micro_batches):
            for ours, theirs in zip(next(here), next(there), strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                assert torch.equal(ours, theirs)


def test_steps_that_ranks_cannot_share_evenly_are_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="21 samples a step do not divide into 2 ranks; change --global-batch-size"):
        MicroBatchLoader(workload_of(folder), cut_into(4, per_step=21, world_size=2), 0, workers=0)


def test_a_training_resumed_with_another_micro_batch_is_the_undisturbed_one(
    folder: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")

    def train(name: str, max_steps: int, micro_batch: str) -> dict[int, float]:
        ran = call(
            "traces-lstm", "train", "--data-dir", str(folder), "--run-dir", str(tmp_path / name), "--no-amp",
            "--batch-size", str(SHARE), "--micro-batch-size", micro_batch, "--num-workers", "2", "--eval-every", "0",
            "--log-every", "1", "--schedule", "constant", "--max-steps", str(max_steps),
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert "2 workers: as asked for" in ran.out
        return ran.losses()

    whole = train("whole", 6, "8")
    parts = train("parts", 3, "auto") | train("parts", 6, "6")
    assert sorted(parts) == [1, 2, 3, 4, 5, 6]
    assert parts == pytest.approx(whole, rel=1e-5)


class Cramped(LstmTraces):
    """Runs out of memory in the third step, with more than five traces; keeps what the others saw."""

    seen: ClassVar[list[int]] = []

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        if len(self.seen) >= 2 * SHARE and len(batch[-1]) > 5:
            del self.seen[len(self.seen) // SHARE * SHARE :]  # the step is done again
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.seen.extend(int(events[0]) for events in batch[0])
        return super().loss_sums(model, batch)


def test_a_halved_micro_batch_loses_and_repeats_no_trace(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        "traces-lstm", "train", "--data-dir", str(folder), "--run-dir", str(tmp_path / "run"), "--no-amp",
        "--batch-size", str(SHARE), "--micro-batch-size", "14", "--num-workers", "2", "--eval-every", "0",
        "--shuffle-buffer-size", "7", "--epochs", "2",
    )  # fmt: skip
    assert Cramped.train(parse(words, {}), RankInfo()) == 0
    output = capfd.readouterr().err
    assert "micro-batches of 14: continuing with 7" in output
    assert "micro-batches of 7: continuing with 3" in output
    undisturbed = steps(workload_of(folder), cut_into(SHARE), 0, 8, workers=2)
    assert Cramped.seen == [number for step in undisturbed for number in step]


# ── The number of workers ─────────────────────────────────────────────────────────────────────────


class Received(Group):
    """Two ranks, of which the other one has less to offer."""

    def all_reduce_min(self, numbers: Sequence[float]) -> list[float]:
        return [min(number, 1) for number in numbers]


def chosen(workload: TracesWorkload, options: TrainOptions, group: Group) -> tuple[int, list[str]]:
    messages = io.StringIO()
    bench = Bench(workload, CPU, cut_into(SHARE), Events(RankInfo(), out=messages, err=io.StringIO()))
    return bench.workers(options, group), messages.getvalue().splitlines()


ALONE = Group(place=RankInfo(), backend="none", device=torch.device("cpu"))
TWO = Received(place=RankInfo(world_size=2), backend="gloo", device=torch.device("cpu"))


def test_only_files_to_train_on_count_and_ranks_of_a_node_share_its_cpus(folder: Path) -> None:
    workload = workload_of(folder)
    assert workload.stream_workers == 3
    crowded = Group(place=RankInfo(local_world_size=10_000), backend="none", device=torch.device("cpu"))
    assert chosen(workload, TrainOptions(), crowded) == (
        1, ["1 worker: the data is for up to 3, the rank with the fewest CPUs has 1"]
    )  # fmt: skip


def test_a_number_that_the_user_named_stays(folder: Path) -> None:
    assert chosen(workload_of(folder), TrainOptions(num_workers=7), TWO) == (7, ["7 workers: as asked for"])


class Measured(LstmTraces):
    """A stream that does not say for how many workers it is."""

    stream_workers = None


def test_measured_workers_of_a_stream_are_as_many_on_each_rank(folder: Path) -> None:
    class Bold(Bench):
        def _measured_workers(self, cpus: int) -> WorkerCount:
            return WorkerCount(workers=4, why="4 workers: measured")

    messages = io.StringIO()
    events = Events(RankInfo(), out=messages, err=io.StringIO())
    bench = Bold(workload_of(folder, Measured), CPU, cut_into(SHARE), events)
    assert bench.workers(TrainOptions(), TWO) == 1
    assert messages.getvalue().splitlines() == [
        "4 workers: measured", "1 worker: streamed data needs as many on each rank, and one has no use for more"
    ]  # fmt: skip


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need different numbers of CPUs")
def test_ranks_with_different_numbers_of_cpus_train_on_each_trace_once(
    folder: Path, forked: Callable[..., Ranks], tmp_path: Path
) -> None:
    words = (
        "traces-lstm", "train", "--data-dir", str(folder), "--run-dir", str(tmp_path / "run"), "--no-amp",
        "--batch-size", "10", "--epochs", "2", "--eval-every", "0", *AS_ONE,  # both ranks take part, however slow
    )  # fmt: skip
    two = forked(2, str(tmp_path / "rank"), *words, module="tests.trainer.uneven_cpus").result()
    assert two.code == 0, two.err
    assert "1 worker: the data is for up to 3, the rank with the fewest CPUs has 1" in two.out
    passed = [[int(line) for line in (tmp_path / f"rank-{rank}").read_text().split()] for rank in range(2)]
    read = [numbers[-80:] for numbers in passed]  # trials before the training have read some, too
    for epoch in range(2):
        assert sorted(read[0][epoch * 40 :][:40] + read[1][epoch * 40 :][:40]) == list(range(80))
