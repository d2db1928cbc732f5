"""One run of a workload: what stays the same from the first step to the last, and what happens between steps."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from contract.events import Rebalanced
from trainer.config import Every, RankInfo, TrainOptions
from trainer.engine.autotune.micro_batch import halve
from trainer.engine.checkpoints.resume import TrainState
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.dataloader import BatchSplit
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.optimization.optimizer import build_optimizer
from trainer.engine.optimization.schedule import due
from trainer.engine.rank_speed import changed_shares
from trainer.engine.reporting.events import Events
from trainer.engine.stop_signal import StopSignal
from trainer.engine.sync.strategy import Sync
from trainer.engine.workload import Workload
from trainer.errors import TrainerError


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    workload: Workload
    options: TrainOptions
    place: RankInfo
    hardware: Hardware
    group: Group
    events: Events
    stop: StopSignal
    writer: Writer
    per_step: int
    """Samples in one optimizer step, over all ranks."""

    @property
    def stopped_marker(self) -> Path:
        """File that exists while the run has been stopped before its end."""
        return self.options.run_dir / "STOPPED"

    def due(self, every: Every, step: int, cursor: int) -> bool:
        return due(every, step, cursor, self.per_step, self.workload.train_samples)

    def optimizer(self) -> torch.optim.Optimizer:
        workload = self.workload
        return build_optimizer(
            workload.model, workload.parameter_groups(), self.options, self.hardware.dtype_of_updates
        )

    def rebalance(self, split: BatchSplit, shares: tuple[int, ...], trained: TrainState, sync: Sync) -> BatchSplit:
        """Continue with other shares of each step; the samples of a step stay the same."""
        names = self.group.all_gather_text(self.place.label)
        changed = changed_shares(names, split.by_rank, shares)
        if self.place.rank == 0:
            self.events.emit(Rebalanced(shares=dict(zip(names, shares, strict=True))))
        self.events.say(f"shares of a step follow the nodes' speed: {changed}")
        trained.sync_state["shares"] = list(shares)
        split = replace(split, shares=shares)
        sync.weight = split.weight
        return split

    def halve_micro_batch(self, split: BatchSplit) -> BatchSplit:
        """The same step in smaller parts, after one of these was too large for this rank's memory."""
        tried = min(split.micro_batch, split.share)
        if self.options.cuda_graphs:
            raise TrainerError(
                f"out of memory with a batch of {tried}, and --cuda-graphs needs it in one micro-batch:"
                f" start again with --batch-size {max(1, tried // 2)}, or without --cuda-graphs"
            )
        size = halve(tried)
        self.events.warn(f"out of memory with micro-batches of {tried}: continuing with {size}")
        return replace(split, micro_batch=size)

    def what_must_be_equal(self) -> str:
        """Return what must be equal on all ranks. Where a node has its files is its own choice; all other values
        decide the result."""
        own = ("data_dir", "run_dir", "resume")
        shared = {key: value for key, value in self.options.as_json().items() if key not in own}
        data = (self.workload.train_samples, self.workload.validation_samples, self.workload.streamed)
        return json.dumps([shared, dict(self.workload.identity), data], sort_keys=True)
