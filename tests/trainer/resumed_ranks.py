"""Models whose weights do not all have a gradient in each step, trained by any number of ranks in turn.

`python -m tests.trainer.resumed_ranks FOLDER UNTIL` resumes each from its newest checkpoint, on as many ranks as there
are. All ranks compute the whole batch, so that their number changes no bit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contract.checkpoint import CheckpointManifest
from tests.trainer.observed import same, state
from trainer import checkpoint_folder
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch, BatchRequest
from trainer.engine.checkpoints.resume import TrainState, resume
from trainer.engine.early_stopping import EarlyStopping
from trainer.engine.group import Group
from trainer.engine.guard import Guard
from trainer.engine.optimization.optimizer import LossScaler, build_optimizer, fill_momentum
from trainer.engine.process_group import gathered, leave
from trainer.engine.workload import Workload
from trainer.errors import ConfigurationError

Groups = list[dict[str, Any]]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {"optimizer": "sgd"},
    "muon": {"optimizer": "muon"},
    "adamw, bf16": {"optimizer_state": "bf16"},
    "adamw, int8": {"optimizer_state": "int8"},
    "sgd, int8": {"optimizer": "sgd", "optimizer_state": "int8"},
    "muon, bf16": {"optimizer": "muon", "optimizer_state": "bf16"},
}


class Mixed(nn.Module):
    """Layers of unequal shapes, of which a step uses those that `used` names."""

    def __init__(self, used: Callable[[int], Sequence[str]], *, tied: bool = False, width: int = 8) -> None:
        super().__init__()
        self.used = used
        self.first, self.spare, self.other = nn.Linear(8, width), nn.Linear(8, 3), nn.Linear(8, 5, bias=False)
        self.last = nn.Linear(8, 8)
        if tied:
            self.last.weight = self.first.weight

    def loss(self, step: int) -> Tensor:
        chance = torch.Generator().manual_seed(step)
        x = torch.randn(6, 8, generator=chance)
        losses = [getattr(self, name)(x).square().mean() for name in self.used(step)]
        return torch.stack(losses).sum()


MODELS: dict[str, Callable[[], Mixed]] = {
    "unused head": lambda: Mixed(lambda _: ("first", "last")),
    "conditional layer": lambda: Mixed(lambda step: ("first", "last", *(("spare",) if step % 4 == 3 else ()))),
    "tied weights": lambda: Mixed(lambda _: ("first", "other", "last"), tied=True),
    "two halves in turn": lambda: Mixed(lambda step: ("first", "spare") if step % 2 else ("other", "last")),
    "frozen layer": lambda: _frozen(Mixed(lambda _: ("first", "spare", "last"))),
}


def _frozen(model: Mixed) -> Mixed:
    model.spare.requires_grad_(requires_grad=False)
    return model


class Case(Workload):
    name = "resumed"

    def __init__(self, model: Mixed) -> None:
        self.model: Mixed = model
        self.identity = {"workload": self.name}
        self.train_samples = 1

    def parameter_groups(self) -> Groups:
        """Return the groups of a workload that says nothing about what is frozen."""
        matrices = [one for one in self.model.parameters() if one.dim() == 2]
        return [
            {"params": matrices, "muon": True},
            {"params": [one for one in self.model.parameters() if one.dim() < 2], "lr_scale": 0.5},
        ]

    def batch(self, portion: BatchRequest) -> Batch:
        raise NotImplementedError

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError


def trained_until(folder: Path, group: Group, model: Mixed, options: TrainOptions, until: int) -> bool:
    """Return whether the state from which this rank continued is the checkpoint's."""
    options = replace(options, run_dir=folder)
    workload = Case(model)
    optimizer = build_optimizer(model, workload.parameter_groups(), options, torch.float32)
    trained = TrainState(
        model=model, optimizer=optimizer, scaler=LossScaler("cpu", enabled=False),
        guard=Guard(on_nan="stop", on_spike="warn", factor=3.0), early_stopping=EarlyStopping("", 0),
    )  # fmt: skip
    start = resume(trained, workload, options, group, lambda _: None)
    alike = True
    if start.step:
        wanted = state(folder, start.step)
        found = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        alike = all(same(found[part], wanted[part]) for part in found)
    fill_momentum(optimizer)  # as the loop does: torch's fused SGD takes it for all weights or for none
    for step in range(start.step + 1, until + 1):
        model.loss(step).backward()  # type: ignore[no-untyped-call]  # torch's own gap
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if group.place.rank == 0:
        manifest = CheckpointManifest(step=until, workload=workload.name, identity=dict(workload.identity))
        written = trained.state(until, until)
        checkpoint_folder.publish(
            checkpoint_folder.write(folder / "checkpoints", manifest, lambda file: torch.save(written, file), {})
        )
    group.barrier()
    return alike


def train_all(folder: Path, group: Group, until: int) -> list[str]:
    """The cases in which this rank did not continue from the checkpoint's state."""
    differing = []
    for number, (kind, build) in enumerate(MODELS.items()):
        for name, chosen in OPTIMIZERS.items():
            # Weights that differ from rank to rank, and a weight decay that is not the one of the checkpoint.
            torch.manual_seed(100 * number + group.place.rank)
            first = not (folder / kind / name).exists()
            options = TrainOptions(lr=0.05, weight_decay=0.1 if first else 0.7, **chosen)
            group.barrier()
            if not trained_until(folder / kind / name, group, build(), options, until):
                differing.append(f"{kind}, {name}")
    return differing


def refused(folder: Path, group: Group) -> str:
    """The error of this rank where the last one has a wider layer."""
    width = 8 if group.place.rank < group.place.world_size - 1 else 9
    model = Mixed(lambda _: ("first", "last"), width=width)
    try:
        trained_until(folder / "unused head" / "adamw", group, model, TrainOptions(), 100)
    except ConfigurationError as error:
        return str(error)
    return ""


def main(folder: Path, until: int) -> int:
    place = RankInfo.from_environ(os.environ)
    with gathered(place) as group:
        reported = {"differing": train_all(folder, group, until), "refused": refused(folder, group)}
        sys.stdout.write(json.dumps({"rank": place.rank, **reported}) + "\n")
        sys.stdout.flush()
        group.barrier()
    return leave(place, 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
