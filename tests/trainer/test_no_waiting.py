"""Steps of every workload, on a device that names each call which waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.trainer import late_steps
from tests.trainer.forked import alone
from tests.trainer.late_device import NAME, Waits, late_device
from trainer.cli import main
from trainer.config import RankInfo
from trainer.data.batch import BatchRequest
from trainer.data.order import Shuffled
from trainer.engine import loop
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader, validation_batches

STEPS = ("--max-steps", "6", "--eval-every", "0", "--checkpoint-every", "0", "--log-every", "1", "--num-workers", "0")
COMMON = (*STEPS, "--no-compile", "--no-amp", "--seed", "7")


@pytest.fixture
def waits() -> Iterator[Waits]:
    with late_device(within=loop._loop) as noted:
        yield noted


@pytest.fixture(scope="module")
def folders(
    data_dir: Path, picture_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[str]]:
    """`folders(workload)`: options that name its data, which is made at the first call."""
    root = tmp_path_factory.mktemp("prepared")

    def data(workload: str) -> list[str]:
        where = root / workload
        if workload == "gpt2":
            where = data_dir
        elif workload == "custom":
            module = root / "digits.py"
            guide = (Path(__file__).parents[2] / "docs" / "custom.md").read_text("utf-8")
            module.write_text(re.findall(r"```python\n(.*?)```", guide, re.S)[0], "utf-8")
            return ["--module", f"{module}:build"]
        elif not where.exists():
            assert main([workload, "prepare", *_SOURCES[workload](picture_folder), "--data-dir", str(where)]) == 0
        return ["--data-dir", str(where)]

    return data


_SOURCES: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "vision": lambda pictures: ("--images", str(pictures), "--image-size", "16"),
    "text": lambda _: ("--csv", "demo", "--rows", "120", "--model-name", "random:tiny", "--vocab-size", "500"),
    "traces-lstm": lambda _: ("--record-own", "600", "--seed", "2"),
    "traces-gnn": lambda _: ("--record-own", "600", "--seed", "2"),
}
TINY = ("--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16")
RUNS = {
    "gpt2": ("gpt2", *TINY, "--gradient-accumulation-steps", "2", "--dropout", "0.1"),
    "gpt2-muon": ("gpt2", *TINY, "--optimizer", "muon"),
    "gpt2-chunks": ("gpt2", *TINY, "--loss-chunk", "32"),
    "gpt2-bf16-moments": ("gpt2", *TINY, "--optimizer-state", "bf16"),
    "gpt2-int8-moments": ("gpt2", *TINY, "--optimizer-state", "int8"),
    "vision": ("vision", "--model", "resnet18", "--image-size", "16", "--batch-size", "8"),
    "vision-int8-moments": (
        "vision", "--model", "resnet18", "--image-size", "16", "--batch-size", "8", "--optimizer-state", "int8",
    ),
    "vision-augmented": (
        "vision", "--model", "vit-mini", "--image-size", "16", "--batch-size", "8", "--mixup", "0.4",
        "--randaugment", "2,12", "--erase", "0.3", "--class-weights", "balanced", "--focal-loss", "2",
    ),
    "text": ("text", "--class-weights", "all"),
    "traces-lstm": ("traces-lstm", "--batch-size", "16"),
    "traces-gnn": ("traces-gnn", "--batch-size", "16"),
    "custom": ("custom",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_no_step_waits(name: str, folders: Callable[[str], list[str]], tmp_path: Path) -> None:
    workload, *options = RUNS[name]
    if workload == "traces-gnn":
        pytest.importorskip("torch_geometric")
    words = [workload, "train", *folders(workload), "--run-dir", str(tmp_path / "run"), *COMMON, *options]
    noted = alone(late_steps.train, words)
    assert noted.waits == {}
    # The figures of a step are read once the next one's passes are queued.
    *late, last = noted.reads
    assert len(late) == 5
    assert min(late) > 10 > last, noted.reads
    assert noted.ahead == [False, *[True] * (len(noted.ahead) - 1)]
    assert len(noted.ahead) >= 6


class Numbers:
    """A workload as far as a loader knows it: a sample is its own number."""

    streamed = False

    def __init__(self) -> None:
        self.loaded: list[list[int]] = []

    def order(self, seed: int) -> Shuffled:
        return Shuffled(6, seed)

    def batch(self, request: BatchRequest) -> tuple[torch.Tensor, ...]:
        self.loaded.append(request.indices.tolist())
        return (torch.from_numpy(request.indices),)


@pytest.mark.parametrize("device", [NAME, "cpu"])
def test_a_batch_is_copied_ahead_on_request_and_dropped_with_the_split(device: str, waits: Waits) -> None:
    workload, split = Numbers(), BatchSplit(place=RankInfo(), seed=3, per_step=2, micro_batch=2)
    expected = [workload.order(3).take(at, 2).tolist() for at in (0, 2, 4)]
    loader = MicroBatchLoader(workload, split, 0, workers=0, device=torch.device(device))  # type: ignore[arg-type]
    waits.raises = True
    first = next(loader)
    loader.copy_ahead()
    loader.copy_ahead()
    assert workload.loaded == expected[: 1 if device == "cpu" else 2]
    second = next(loader)
    assert workload.loaded == expected[:2]
    loader.copy_ahead()
    loader.resplit(split, 0)
    again = next(loader)
    waits.raises = False
    assert [batch[0].tolist() for batch in (first, second, again)] == [expected[0], expected[1], expected[0]]
    assert {batch[0].device.type for batch in (first, second, again)} == {device}


@pytest.mark.parametrize(
    ("workers", "micro_batch", "started"), [(0, 3, 0), (2, 3, 2), (2, 8, 0)], ids=["here", "in workers", "too few"]
)
def test_an_evaluation_loads_in_workers_if_that_is_worth_it_and_ends_them(
    workers: int, micro_batch: int, started: int
) -> None:
    indices = np.arange(40)[::-1].copy()
    batches = validation_batches(  # type: ignore[type-var]  # as far as a loader knows it
        Numbers(), indices, micro_batch, workers=workers, device=torch.device("cpu")
    )
    before = set(psutil.Process().children())
    first = next(batches)
    new = set(psutil.Process().children()) - before
    assert len(new) == started
    found = torch.cat([first[0], *(batch[0] for batch in batches)])
    assert found.tolist() == indices.tolist()
    batches.close()
    assert not new & set(psutil.Process().children())


def test_an_evaluation_copies_from_pinned_memory_without_waiting(waits: Waits) -> None:
    waits.raises = True
    batches = validation_batches(Numbers(), np.arange(6), 4, workers=0, device=torch.device(NAME))  # type: ignore[arg-type]
    first, last = batches
    waits.raises = False
    assert (first[0].tolist(), last[0].tolist()) == ([0, 1, 2, 3], [4, 5])
    assert first[0].device.type == NAME


VALUES = torch.tensor([1.0, 0.0, 3.0])
WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda late: late.sum().item(),
    "float": lambda late: float(late.sum()),
    "int": lambda late: int(late.sum()),
    "bool": lambda late: bool(late.sum() > 0),
    "tolist": lambda late: late.tolist(),
    "cpu": lambda late: late.cpu(),
    "to": lambda late: late.to("cpu"),
    "to a tensor of the CPU": lambda late: torch.empty(3).copy_(late, non_blocking=True),
    "nonzero": lambda late: late.nonzero(),
    "where": lambda late: torch.where(late > 0),
    "mask": lambda late: late[late > 0],
    "values of a mask": lambda late: late.__setitem__(late > 0, late[:2]),
    "index of the CPU": lambda late: late[torch.tensor([0, 1])],
    "masked_select": lambda late: late.masked_select(late > 0),
    "unique": lambda late: late.unique(),
    "equal": lambda late: torch.equal(late, late.clone()),
    "repeat_interleave": lambda late: late.repeat_interleave(late.long()),
    "bincount": lambda late: late.long().bincount(),
    "tensor": lambda late: torch.tensor([1.0, 2.0], device=late.device),
    "copy of pageable memory": lambda late: torch.zeros(3).to(late.device, non_blocking=True),
    "blocking copy": lambda late: torch.zeros(3).pin_memory().to(late.device),
    "copy of columns": lambda late: torch.zeros(3, 3).pin_memory()[:, 1:].to(late.device, non_blocking=True),
}
FREE: dict[str, Callable[[torch.Tensor], object]] = {
    "arithmetic": lambda late: (late * 2 + 1).sum().clamp_min(0),
    "filled": lambda late: torch.full((3,), 2.0, device=late.device),
    "one element": lambda late: late.__setitem__(0, 2.0),
    "masked_fill": lambda late: late.masked_fill(late > 0, 1.0),
    "one value for a mask": lambda late: late.__setitem__(late > 0, 1.0),
    "choice": lambda late: torch.where(late > 0, late, 0.0),
    "pinned": lambda late: torch.zeros(3).pin_memory().to(late.device, non_blocking=True),
    "to pinned memory": lambda late: torch.empty(3, pin_memory=True).copy_(late, non_blocking=True),
}


@pytest.mark.parametrize("call", WAITING)
def test_each_call_that_waits_is_noted(call: str, waits: Waits) -> None:
    late = VALUES.to(NAME)
    waits.raises = True
    with pytest.raises(AssertionError, match="waits for the device"):
        WAITING[call](late)


@pytest.mark.parametrize("call", FREE)
def test_no_other_call_is_noted(call: str, waits: Waits) -> None:
    late = VALUES.to(NAME)
    waits.raises = True
    FREE[call](late)
