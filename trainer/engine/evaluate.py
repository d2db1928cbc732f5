"""How good the model is on data it does not learn from: the same samples each time, spread over the ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.agent import heartbeat
from trainer.config import TrainOptions
from trainer.data.batch import BatchRequest
from trainer.data.order import Indices, share
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.workload import Outputs, Workload


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


@torch.no_grad()
def evaluate(
    workload: Workload, options: TrainOptions, micro_batch: int, hardware: Hardware, group: Group
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
    for at in range(0, len(mine), micro_batch):
        heartbeat.part("evaluation")
        indices = mine[at : at + micro_batch]
        batch = workload.batch(BatchRequest(split="validation", indices=indices, positions=indices))
        with hardware.autocast():
            losses, outputs = workload.evaluate_batch(model, hardware.move(batch))
        sums += losses
        judged.append(outputs.double().cpu())
    model.train(was_training)

    totals = group.all_reduce_sum(sums.tolist())
    targets = workload.target_counts("validation", everyones)
    means = {
        name: total / count for name, total, count in zip(workload.loss_weights, totals, targets, strict=True) if count
    }
    outputs_of_all = group.all_gather_rows(torch.cat(judged) if judged else torch.empty(0, 0), len(everyones)).numpy()
    loss = sum(weight * means.get(name, 0.0) for name, weight in workload.loss_weights.items())
    return Evaluation(
        loss=loss,
        metrics=workload.metrics(means, outputs_of_all, everyones),
        outputs=outputs_of_all,
        indices=everyones,
    )


def chosen(samples: int, options: TrainOptions) -> Indices:
    """All validation samples, or as many as asked for, evenly spread."""
    if options.eval_batches is None:
        return np.arange(samples)
    count = min(samples, options.eval_batches * options.batch_size)
    return np.linspace(0, samples - 1, count).astype(np.int64)
