"""Resume of a run: the checkpoint, and the way of its state to every rank.

Only rank 0 needs the file. The others get the state as tensors: collectives that pickle objects would run
whatever a peer sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer import checkpoint_folder
from trainer.checkpoint_folder import Checkpoint
from trainer.config import RankInfo, TrainOptions
from trainer.engine.checkpoints.state_file import must_fit_in, read_state
from trainer.engine.early_stopping import EarlyStopping
from trainer.engine.group import Group
from trainer.engine.guard import Guard
from trainer.engine.optimization.optimizer import LossScaler, load_optimizer
from trainer.engine.weights import send_tensors
from trainer.engine.workload import Workload
from trainer.errors import ConfigurationError

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    step: int = 0
    cursor: int = 0
    """Position in the stream of samples."""
    source: Path | None = None
    sync: str = ""
    """Sync method until then."""


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that changes while training, and so all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: LossScaler
    guard: Guard
    early_stopping: EarlyStopping
    sync_state: dict[str, Any] = field(default_factory=dict)
    """State of the sync method (a `SyncPlan`)."""
    step_sizes: list[tuple[int, int]] = field(default_factory=list)
    """Sizes as in `order.StepSizes`."""

    def numbers(self) -> dict[str, Any]:
        """All but the tensors, as JSON can hold it."""
        states = {"scaler": self.scaler.state_dict(), "guard": self.guard.state(), "watch": self.early_stopping.state()}
        return {**states, "manner": self.sync_state, "step_sizes": self.step_sizes}

    def remember(self, numbers: Mapping[str, Any]) -> None:
        if self.scaler.is_enabled() and numbers["scaler"]:
            self.scaler.load_state_dict(numbers["scaler"])
        self.guard.restore(numbers["guard"])
        self.early_stopping.restore(numbers["watch"])
        self.sync_state.update(numbers.get("manner", {}))
        self.step_sizes[:] = [(position, samples) for position, samples in numbers["step_sizes"]]

    def state(self, step: int, cursor: int) -> dict[str, Any]:
        """Contents of a checkpoint. Its tensors are those that continue to be trained, not copies."""
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**tensors, **self.numbers(), "step": step, "cursor": cursor}

    def read(self, path: Path, say: Say) -> tuple[int, int]:
        """ConfigurationError: the file is whole, but no state of this model, or one that would run something."""
        state = read_state(path)
        with must_fit_in(path):
            self.model.load_state_dict(state["model"])
            if converted := load_optimizer(self.optimizer, state["optimizer"]):
                say(converted)
            self.remember(state)
            return int(state["step"]), int(state["cursor"])


def resume(trained: TrainState, workload: Workload, options: TrainOptions, group: Group, say: Say) -> ResumePoint:
    """Bring all ranks to the state to resume from; the same on each of them when this returns."""
    progress, refusal = ResumePoint(), None
    if group.place.rank == 0:
        try:
            chosen = choose(options, group.place, say)
            if chosen:
                must_fit(chosen, workload.identity)
                step, cursor = trained.read(chosen.state_file, say)
                progress = ResumePoint(step=step, cursor=cursor, source=chosen.path)
        except ConfigurationError as error:
            refusal = error
    # As JSON: whatever would unpickle here would run what a peer sends.
    own = {"refused": bool(refusal), "step": progress.step, "cursor": progress.cursor, **trained.numbers()}
    own |= {"settings": [_settings(one) for one in trained.optimizer.param_groups], "states": _with_state(trained)}
    received = json.loads(group.broadcast_text(json.dumps(own)))
    if refusal:
        raise refusal
    if received["refused"]:
        raise ConfigurationError("rank 0 found no checkpoint to resume from: see its message")
    if received["step"] and not group.alone:
        trained.remember(received)
        if group.place.rank:
            _prepare_optimizer(trained, received["settings"], received["states"])
        send_tensors(_tensors(trained), group)
    sync = received["manner"].get("sync", "")
    return ResumePoint(step=received["step"], cursor=received["cursor"], source=progress.source, sync=sync)


def choose(options: TrainOptions, place: RankInfo, say: Say) -> Checkpoint | None:
    """The checkpoint that `--resume` means, None for a new beginning."""
    root = options.run_dir / "checkpoints"
    if options.resume == "auto":
        return checkpoint_folder.to_resume(root, place.resume_from, place.attempt, say)
    own = _own_progress(root, place)
    if own:
        # The same container started again by Docker, with the same command line: its own progress goes first,
        # or every restart would throw it away.
        say(f"this run has already come to step {own.step}: continuing from there, not by --resume {options.resume}")
        return own
    if options.resume == "never":
        aside = checkpoint_folder.set_aside([found.path for found in checkpoint_folder.survey(root)])
        if aside:
            say(f"starting from scratch: earlier checkpoints are now in {aside}")
        return None
    chosen = checkpoint_folder.locate(Path(options.resume), say)
    # What is newer would win at the next start, and it is not what the user asked for.
    later = [found.path for found in checkpoint_folder.survey(root) if found.step > chosen.step]
    aside = checkpoint_folder.set_aside(later)
    if aside:
        say(f"going back to step {chosen.step}: later checkpoints are now in {aside}")
    return chosen


def must_fit(chosen: Checkpoint, identity: Mapping[str, str | int]) -> None:
    theirs = chosen.manifest.identity
    differing = [
        f"{key}: the checkpoint has {theirs.get(key)}, this run {value}"
        for key, value in identity.items()
        if theirs.get(key) != value
    ]
    if differing:
        raise ConfigurationError(
            f"{chosen.path} does not fit this run:\n  " + "\n  ".join(differing)
            + "\ngive the same options and data, another --run-dir, or --from-scratch"
        )  # fmt: skip


def _own_progress(root: Path, place: RankInfo) -> Checkpoint | None:
    if not place.run_id:
        return None
    own = [c for c in checkpoint_folder.survey(root) if not c.problem and c.manifest.run_id == place.run_id]
    if place.resume_from:  # in a job each life is an attempt
        own = [c for c in own if c.manifest.attempt == place.attempt]
    return own[0] if own else None


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if isinstance(value, bool | int | float | str | tuple | None)}


def _prepare_optimizer(trained: TrainState, settings: Sequence[dict[str, Any]], states: Collection[str]) -> None:
    """Give the optimizer rank 0's settings, and a state to each weight for which rank 0 has loaded one.

    An optimizer makes it at the first gradient: a step with learning rate 0 and gradients of zero moves no weight.
    """
    optimizer = trained.optimizer
    for name, parameter in _parameters(trained):
        if name in states:
            parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, theirs in zip(optimizer.param_groups, settings, strict=True):
        group.update((key, tuple(value) if isinstance(value, list) else value) for key, value in theirs.items())


def _with_state(trained: TrainState) -> list[str]:
    return [name for name, parameter in _parameters(trained) if _state_of(parameter, trained.optimizer)]


def _tensors(trained: TrainState) -> dict[str, Tensor]:
    """All that is to be the same on all ranks, by name: the model's, then the state of each of its weights."""
    found = {name: value for name, value in trained.model.state_dict().items() if isinstance(value, Tensor)}
    for name, parameter in _parameters(trained):
        found |= {f"{key} of {name}": value for key, value in _state_of(parameter, trained.optimizer).items()}
    return found


def _parameters(trained: TrainState) -> list[tuple[str, Tensor]]:
    """The optimizer's, in its order, by their names in the model."""
    names = {id(parameter): name for name, parameter in trained.model.named_parameters()}
    everyone = [parameter for group in trained.optimizer.param_groups for parameter in group["params"]]
    return [(names.get(id(one), f"parameter {number}"), one) for number, one in enumerate(everyone)]


def _state_of(parameter: Tensor, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state.get(parameter, {})  # by `[]` there would be an empty one
    return {key: value for key, value in sorted(state.items()) if isinstance(value, Tensor)}
