"""A checkpoint on its way: what it holds, when it is one, and what the training hears of a disk that fails."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.observed import Observed, Wishes, same, state
from trainer import checkpoint_folder
from trainer.config import RankInfo, TrainOptions
from trainer.engine.async_save import Checkpointer
from trainer.engine.checkpoints.resume import TrainState
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.early_stopping import EarlyStopping
from trainer.engine.group import Group
from trainer.engine.guard import Guard
from trainer.engine.hardware.device import Hardware
from trainer.engine.reporting.events import Events
from trainer.engine.run import TrainingRun
from trainer.engine.stop_signal import StopSignal
from trainer.engine.sync.strategy import State, Sync
from trainer.errors import TrainerError


class Files(dict[str, Path]):
    """Files that a checkpoint can have only once the gate is open: until then its write is under way."""

    def __init__(self) -> None:
        self.gate, self.waiting = Event(), Event()
        self.gate.set()

    def items(self) -> Any:
        self.waiting.set()
        self.gate.wait()
        return super().items()


class OwnErrors(Sync):
    """Each rank has something of its own, where asked for."""

    name = "own"

    def __init__(self, model: nn.Module, own: State) -> None:
        self.model, self.own = model, own

    def gradients(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> State:
        return self.own


@dataclass(frozen=True, kw_only=True)
class Training:
    files: Files
    trained: TrainState
    run: TrainingRun
    checkpointer: Checkpointer
    output: io.StringIO

    @property
    def there(self) -> list[int]:
        return checkpoint_folder.steps(self.run.options.run_dir / "checkpoints")

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        lines = [line for line in self.output.getvalue().splitlines() if line.startswith("@orch ")]
        return [event for line in lines if (event := json.loads(line[6:]))["event"] == "checkpoint"]

    def learn(self) -> None:
        """Something that moves all there is."""
        for parameter in self.trained.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.trained.optimizer.step()


Begin = Callable[..., Training]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    made: list[Training] = []

    def training(own: State | None = None, **options: Any) -> Training:
        place = RankInfo(events=True)
        chosen = TrainOptions(run_dir=tmp_path, **options)
        workload, output, files = Observed(chosen, Wishes(), place), io.StringIO(), Files()
        workload.attachments = files
        cpu = torch.device("cpu")
        run = TrainingRun(
            workload=workload,
            options=chosen,
            place=place,
            hardware=Hardware(device=cpu, threads=1, dtype=torch.float32, onednn=""),
            group=Group(place=place, backend="none", device=cpu),
            events=Events(place, out=output),
            stop=StopSignal(),
            writer=Writer(),
            per_step=4,
        )
        trained = TrainState(
            model=workload.model,
            optimizer=torch.optim.AdamW(workload.model.parameters()),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            guard=Guard(),
            early_stopping=EarlyStopping("loss", 0),
        )
        checkpointer = Checkpointer(run, trained, OwnErrors(workload.model, own or {}))
        made.append(Training(files=files, trained=trained, run=run, checkpointer=checkpointer, output=output))
        made[-1].learn()
        return made[-1]

    yield training
    for one in made:
        one.files.gate.set()
        one.run.writer.close(10)


def test_the_training_continues_and_the_checkpoint_has_what_was_then(begin: Begin, tmp_path: Path) -> None:
    training = begin()
    training.files.gate.clear()
    expected: Mapping[str, Tensor] = {name: t.clone() for name, t in training.trained.model.state_dict().items()}
    training.checkpointer.save(1, 4)
    training.files.waiting.wait()
    training.learn()
    training.checkpointer.poll(all_written=True)
    assert training.there == []
    training.files.gate.set()
    training.checkpointer.wait()
    assert same(dict(state(tmp_path, 1)["model"]), expected)
    assert not same(dict(training.trained.model.state_dict()), expected)
    (event,) = training.checkpoints
    assert (event["step"], event["verified"]) == (1, True)
    assert 0 <= event["stopped_s"] < event["seconds"]


def test_without_a_copy_it_is_there_when_the_training_continues(begin: Begin) -> None:
    training = begin(checkpoint_async=False)
    training.checkpointer.save(1, 4)
    assert training.there == [1]
    assert training.checkpoints[0]["stopped_s"] == training.checkpoints[0]["seconds"] > 0


def test_the_last_one_is_there_before_the_end(begin: Begin) -> None:
    training = begin()
    training.checkpointer.save(1, 4, last=True)
    assert training.there == [1]


def test_the_next_waits_for_the_last_and_both_have_their_own(begin: Begin, tmp_path: Path) -> None:
    training = begin()
    training.checkpointer.save(1, 4)
    training.learn()
    training.checkpointer.save(2, 8)
    assert training.there[-1] == 1
    training.checkpointer.wait()
    assert training.there == [2, 1]
    assert not same(state(tmp_path, 1)["model"], state(tmp_path, 2)["model"])
    assert [event["step"] for event in training.checkpoints] == [1, 2]


def test_the_best_is_named_once_it_is_there_and_outlives_the_count(begin: Begin, tmp_path: Path) -> None:
    training = begin(keep_checkpoints=1)
    training.files.gate.clear()
    training.checkpointer.save(1, 4, best=True)
    assert not (tmp_path / "best.json").exists()
    training.files.gate.set()
    for step in (2, 3):
        training.checkpointer.save(step, 4 * step)
    training.checkpointer.wait()
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 1
    assert training.there == [3, 1]


def test_it_is_none_until_all_ranks_have_written_their_own(begin: Begin, tmp_path: Path) -> None:
    own = {"unsent": torch.ones(3)}
    training = begin(own)
    training.checkpointer.save(1, 4)
    own["unsent"] += 1
    training.run.writer.finish()
    assert training.checkpointer.own_written
    training.checkpointer.poll(all_written=False)  # another rank's disk is slower
    training.run.writer.finish()
    assert training.there == []
    training.checkpointer.poll(all_written=True)
    training.run.writer.finish()
    assert training.there == [1]
    saved = torch.load(tmp_path / "ranks/step-00000001/rank-0-of-1.pt", weights_only=True)
    assert saved["state"]["unsent"].tolist() == [1.0] * 3


def test_files_of_ranks_are_those_of_the_checkpoints_that_are_there(begin: Begin, tmp_path: Path) -> None:
    training = begin({"unsent": torch.ones(3)}, keep_checkpoints=1)
    for step in (1, 2, 3):
        training.checkpointer.save(step, 4 * step, best=step == 1)
        # The one before stays until this one is a checkpoint: a crash in between costs nothing.
        training.run.writer.finish()
        steps = {int(path.name[5:]) for path in (tmp_path / "ranks").iterdir()}
        assert steps >= {step, *training.there}
    training.checkpointer.wait()
    training.run.writer.finish()
    assert training.there == [3, 1]
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize("asked", ["poll", "save", "wait"])
def test_what_fails_in_writing_ends_the_run_at_its_next_step_or_save(begin: Begin, tmp_path: Path, asked: str) -> None:
    training = begin()
    training.checkpointer.save(1, 4)
    training.checkpointer.wait()
    training.files["gone"] = tmp_path / "gone"
    training.checkpointer.save(2, 8)
    tried = Event()
    training.run.writer.submit(tried.set)
    tried.wait()
    ask = {
        "poll": lambda: training.checkpointer.poll(all_written=True),
        "save": lambda: training.checkpointer.save(3, 12),
        "wait": training.checkpointer.wait,
    }[asked]
    with pytest.raises(TrainerError, match=r"of step 2 cannot be written .*gone.*; the checkpoint of step 1 is kept"):
        ask()
    assert training.there == [1]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_rank_whose_own_file_fails_never_says_that_it_is_written(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("where a folder should be")
    training = begin({"unsent": torch.ones(3)})
    training.checkpointer.save(1, 4)
    with pytest.raises(TrainerError, match="what rank 0 alone knows at step 1 cannot be written"):
        training.checkpointer.wait()
    assert not training.checkpointer.own_written
    assert training.there == []
