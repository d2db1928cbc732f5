"""Figures of a step (losses, norm of the gradient), read while the device already computes the next step.

To read a number that a GPU still computes the CPU waits, and the GPU then waits for the CPU to queue its next work. So
the figures are copied without waiting, and read in the next step once its passes are queued. Until then the update
stands, which must be right without them: the device itself skips it where the gradient is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.engine.async_save import Checkpointer
from trainer.engine.guard import LossVerdict
from trainer.engine.optimization.optimizer import skips_on_device
from trainer.engine.reporting.metrics import TrainingReporter
from trainer.engine.setup import TrainingSetup
from trainer.engine.step_stats import StepStats, TakenStep, all_reduce_stats
from trainer.engine.sync.methods import LOCAL
from trainer.errors import TrainerError


class StepFigures:
    """Figures of one step at a time: sent, then read on all ranks at the same place, then reported."""

    def __init__(self, setup: TrainingSetup, checkpointer: Checkpointer, reporter: TrainingReporter) -> None:
        self._setup, self._checkpointer, self._reporter = setup, checkpointer, reporter
        self.late = read_late(setup)
        """True if a step's figures are read after its update, in the next step."""
        self.stopping = False
        """True if a rank was asked to stop."""
        self.shares: tuple[int, ...] | None = None
        """New shares of the ranks, once they are worth a change."""
        self._sent: _Sent | None = None
        self._report: Callable[[], None] | None = None

    def send(self, taken: TakenStep, sums: Tensor, norm: Tensor) -> None:
        """Begin to copy this rank's figures from the device."""
        copied = torch.cat([sums, norm.reshape(1)]).to("cpu", non_blocking=True)
        event = torch.cuda.current_stream(sums.device).record_event() if sums.is_cuda else None
        self._sent = _Sent(taken=taken, copied=copied, event=event)

    def read(self) -> tuple[StepStats, LossVerdict]:
        """Exchange and judge the figures that were sent. On all ranks. TrainerError: the training must stop.

        One small all-reduce gives all ranks the loss, which ranks have a NaN or infinite one, whether one was asked to
        stop, how fast each computes, and whether each has written its own part of the last checkpoint.
        """
        sent, self._sent = self._sent, None
        assert sent is not None  # noqa: S101  # read once
        run, trained, taken = self._setup.run, self._setup.trained, sent.taken
        *sums, norm = sent.figures()
        stats = all_reduce_stats(
            run.group, sums, norm,
            stop=run.stop.asked, sample_s=taken.sample_s(), written=self._checkpointer.own_written,
        )  # fmt: skip
        self._checkpointer.poll(all_written=stats.written)
        self.stopping = stats.stopping
        losses = stats.mean_losses(run.workload.loss_weights, taken.targets)
        loss = sum(run.workload.loss_weights[name] * mean for name, mean in losses.items())
        norm_if_judged = None if trained.scaler.is_enabled() else stats.norm
        verdict = trained.guard.judge(taken.step, loss, stats.at_fault, norm_if_judged)
        if verdict.action == "stop":
            raise TrainerError(verdict.message)
        if verdict.message:
            run.events.say(verdict.message)

        def report() -> None:
            self._reporter.step(taken, stats, losses, loss=loss)
            if self._setup.balancer:
                self.shares = self._setup.balancer.update(stats.sample_s) or self.shares

        self._report = report
        return stats, verdict

    def settle(self) -> None:
        """Read and report what is still to be. On all ranks."""
        if self._sent:
            self.read()
        report, self._report = self._report, None
        if report:
            report()


def read_late(setup: TrainingSetup) -> bool:
    """Return whether figures are read in the next step: by what is the same on all ranks, whichever devices they have.

    Not where the figures decide on the update, nor where the optimizer cannot skip one on the device, nor where each
    rank steps by its own gradients: there it does not see in them that another rank's are not finite.
    """
    decides = setup.run.options.on_spike == "skip"
    return skips_on_device(setup.optimizer) and not decides and setup.sync.name not in LOCAL


@dataclass(frozen=True, kw_only=True)
class _Sent:
    taken: TakenStep
    copied: Tensor
    """Sums of the loss terms, and the gradient's norm; complete after `event`."""
    event: torch.cuda.Event | None

    def figures(self) -> list[float]:
        if self.event:
            self.event.synchronize()
        return [float(figure) for figure in self.copied.tolist()]
