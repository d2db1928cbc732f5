"""Functions of `orch_hooks`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orch_hooks.private_import import load

if TYPE_CHECKING:
    from torch import nn

Model = TypeVar("Model", bound="nn.Module")
_reporter: Any = None
"""This rank's `StepReporter`, from its first use on."""


def active() -> bool:
    """Return whether this process is a rank of a run."""
    return bool(os.environ.get(load("contract.environment").RUN_DIR))


def ddp(
    model: Model,
    sync: str = "auto",
    *,
    batches: Any = None,
    rank: int = 4,
    density: float = 0.02,
    codec: str = "int8",
) -> Model:
    """Exchange the gradients of a `DistributedDataParallel` by a sync method, and return the model.

    Call it on all ranks, before the first backward pass. `auto`: the method that `ORCH_SYNC` names, otherwise the most
    exact one whose exchange is nearly as fast as the fastest, measured for some seconds. `batches`: the result of
    `batch_sampler`, whose batches follow the speed of the ranks from now on. `rank` and `codec` are PowerSGD's,
    `density` is topk's. ValueError: there is no such method for gradients.
    """
    if active():
        options = {"sync_rank": rank, "sync_density": density, "sync_codec": codec}
        load("trainer.hooks.gradients").ddp(model, os.environ, sync, options, batches)
    return model


def batch_sampler(dataset: Sized, batch_size: int, *, shuffle: bool = True, seed: int = 0) -> Any:
    """Return a batch sampler of this rank, for `DataLoader(dataset, batch_sampler=…)`, after `init_process_group`.

    With `ddp(…, batches=…)` a faster rank gets larger batches, and a slower one smaller ones; the samples of each step
    are the same whatever the shares are, `batch_size` per rank on average. `set_epoch` is that of a
    `DistributedSampler`. ValueError: an empty dataset or batch.
    """
    return load("trainer.hooks.shares").batch_sampler(len(dataset), batch_size, seed=seed if shuffle else None)


def step(number: int, *, samples: float | None = None, total: int | None = None, **metrics: Any) -> int:
    """Report that an optimizer step is done, on all ranks, and return its number.

    Cheap enough for every step: at most one report per second, and a tensor among `metrics` is read only for a report.
    `samples`: samples of all ranks in this step; without it the speed is in steps per second. `total`: number of
    the last step, for the remaining time.
    """
    if active():
        _steps().step(number, metrics, samples, total)
    return number


def checkpoint(path: str | os.PathLike[str], step: int | None = None, *, keep: int = 3) -> str | os.PathLike[str]:
    """Register a file, or a folder without subfolders, that is completely written, as a checkpoint of the run.

    It is copied to the run's folder, verified, copied to another node, and found by `resume`. Call it on rank 0; on
    other ranks it does nothing. `step` (default: that of the last `hooks.step`) names the checkpoint. `keep`: newest
    checkpoints that stay. Returns `path`.
    """
    if active():
        reporter = _steps()
        reporter.checkpointed()
        number = reporter.last if step is None else step
        load("trainer.hooks.checkpoints").register(Path(path), os.environ, number, keep)
    return path


def resume() -> str | None:
    """Return the path of the newest checkpoint of the run that is intact, or None. Call it on all ranks.

    It is the same file or folder on every node: a node that does not have it receives it from rank 0.
    """
    if not active():
        return None
    _steps().checkpointed()
    found = load("trainer.hooks.checkpoints").newest(os.environ)
    return None if found is None else str(found)


def _steps() -> Any:
    global _reporter  # one per process, as the heartbeat is
    if _reporter is None:
        _reporter = load("trainer.hooks.steps").StepReporter(os.environ)
        atexit.register(_reporter.close)
    return _reporter
