"""Evaluation on data from which the model does not learn: the same samples each time, spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contract.events import Evaluated
from trainer.agent import heartbeat
from trainer.checkpoint_folder import Checkpoint
from trainer.config import RankInfo, TrainOptions
from trainer.data.order import Indices, share
from trainer.engine.checkpoints.state_file import must_fit_in, read_state
from trainer.engine.dataloader import validation_batches
from trainer.engine.group import Group
from trainer.engine.hardware.compiling import uncompiled
from trainer.engine.hardware.device import Hardware, prepare_hardware
from trainer.engine.reporting.reporters import Reporters
from trainer.engine.setup import TrainingSetup
from trainer.engine.workload import Outputs, Workload
from trainer.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    loss: float
    metrics: dict[str, float]
    outputs: Outputs
    """Outputs of all ranks, in the order of `indices`."""
    indices: Indices

    @property
    def figures(self) -> dict[str, float]:
        return {"loss": self.loss, **self.metrics}


class Evaluator:
    """Evaluation of a run in training, every --eval-every steps."""

    def __init__(self, setup: TrainingSetup, reporters: Reporters) -> None:
        self._run, self._trained, self._sync, self._reporters = setup.run, setup.trained, setup.sync, reporters
        self._workers = setup.workers
        self.enabled = bool(self._run.options.eval_every and self._run.workload.validation_samples)
        self.step = -1
        """Step after which the weights were evaluated."""

    def evaluate(self, step: int, micro_batch: int) -> bool:
        """Evaluate the weights that all ranks share, and report it. Return whether they are the best so far."""
        run = self._run
        with self._sync.use_averaged():
            found = evaluate(run.workload, run.options, micro_batch, run.hardware, run.group, self._workers)
        improved = self._trained.early_stopping.update(step, found.figures)
        if run.place.rank == 0:
            self._reporters.figures("validation", step, found.figures)
            run.events.emit(Evaluated(step=step, others=found.figures))
            text = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in found.figures.items())
            run.events.say(f"evaluation at step {step}: {text}")
            if improved:
                for path in run.workload.save_report(found.outputs, found.indices, run.options.run_dir / "evaluation"):
                    run.events.say(f"  {path}")
        self.step = step
        return improved


def evaluate(
    workload: Workload, options: TrainOptions, micro_batch: int, hardware: Hardware, group: Group, workers: int = 0
) -> Evaluation:
    """Evaluate on validation samples that `workers` processes load. On all ranks."""
    with torch.no_grad(), uncompiled(workload.model):
        return _evaluate(workload, options, micro_batch, hardware, group, workers)


def _evaluate(
    workload: Workload, options: TrainOptions, micro_batch: int, hardware: Hardware, group: Group, workers: int
) -> Evaluation:
    everyones = chosen(workload.validation_samples, options)
    mine = share(everyones, group.place.rank, group.place.world_size)
    sums = torch.zeros(len(workload.loss_weights), device=hardware.device)
    judged: list[Tensor] = []
    # The bare model: ranks may have different numbers of batches, and none must wait for a peer here.
    model = workload.model
    for buffer in model.buffers():
        group.broadcast(buffer)  # batch norm's of rank 0, which a checkpoint keeps
    was_training = model.training
    model.eval()
    with closing(validation_batches(workload, mine, micro_batch, workers=workers, device=hardware.device)) as batches:
        for batch in batches:
            heartbeat.part("evaluation")
            with hardware.autocast():
                losses, rows = workload.evaluate_batch(model, batch)
            sums += losses
            judged.append(rows.double())  # stays on the device, which the loop does not wait for
    model.train(was_training)

    totals = group.all_reduce_sum(sums.tolist())
    targets = workload.target_counts("validation", everyones)
    means = {
        name: total / count for name, total, count in zip(workload.loss_weights, totals, targets, strict=True) if count
    }
    outputs = torch.cat(judged).cpu() if judged else torch.empty(0, 0)
    outputs_of_all = group.all_gather_rows(outputs, len(everyones)).numpy()
    loss = sum(weight * means.get(name, 0.0) for name, weight in workload.loss_weights.items())
    return Evaluation(
        loss=loss,
        metrics=workload.metrics(means, outputs_of_all, everyones),
        outputs=outputs_of_all,
        indices=everyones,
    )


def evaluate_checkpoint(
    make: Callable[[], Workload], found: Checkpoint, options: TrainOptions, place: RankInfo
) -> Evaluation:
    """Evaluate the weights of a checkpoint in this process alone, --batch-size samples at a time."""
    hardware = prepare_hardware(place, options)
    workload = make()
    if not workload.validation_samples:
        raise ConfigurationError(f"{workload.name}: no validation samples to evaluate on")
    workload.model.to(hardware.device)
    state = read_state(found.state_file, hardware.device)
    with must_fit_in(found.state_file):
        workload.model.load_state_dict(state["model"])
    alone = Group(place=RankInfo(), backend="none", device=torch.device("cpu"))
    return evaluate(workload, options, options.batch_size, hardware, alone)


def chosen(samples: int, options: TrainOptions) -> Indices:
    """All validation samples, or as many as asked for, evenly spread."""
    if options.eval_batches is None:
        return np.arange(samples)
    count = min(samples, options.eval_batches * options.batch_size)
    return np.linspace(0, samples - 1, count).astype(np.int64)
