"""Metrics of a training: the figures of its steps, and where they are reported (reporters, events, lines)."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from types import TracebackType

import numpy as np

from contract.cost_model.units import duration, thousands
from contract.events import SampleWritten, StepDone, TrainingDone, TrainingStopped
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader
from trainer.engine.early_stopping import EarlyStopping
from trainer.engine.hardware.card_use import PassCost, recommendation
from trainer.engine.hardware.compiling import uncompiled
from trainer.engine.rank_speed import ComputeTimes
from trainer.engine.reporting.remaining_time import FIRST_STEPS, RemainingTime
from trainer.engine.reporting.reporters import Reporters, TrainingBegun
from trainer.engine.run import TrainingRun
from trainer.engine.setup import TrainingSetup
from trainer.engine.step_stats import StepStats, TakenStep

USUAL_STEPS = FIRST_STEPS
"""Steps whose median is the usual time of a step."""


def _on_card_use(run: TrainingRun, split: BatchSplit, peak: float, flops_per_unit: float) -> str:
    """Line for people where this rank's passes leave much of its GPU idle; otherwise empty."""
    options, samples = run.options, min(split.micro_batch, split.share)
    by_memory = options.micro_batch_size == "auto"
    if options.cuda_graphs or not peak or (by_memory and samples < split.share):
        return ""
    flops = flops_per_unit * run.workload.count_units(np.arange(1))
    tensors = sum(parameter.requires_grad for parameter in run.workload.model.parameters())
    by_size = isinstance(options.micro_batch_size, int)
    most = split.share if by_size or options.global_batch_size else run.workload.train_samples
    cost = PassCost(flops=flops, peak=peak, tensors=tensors)
    return recommendation(cost, samples, most, "--micro-batch-size" if by_size else "--batch-size")


class Throughput:
    """Units per second since the last reading, and the usual time of a step. Only the time spent on training counts."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = self._step_began = clock()
        self._steps: deque[float] = deque(maxlen=USUAL_STEPS)
        self._units = 0
        self._waited: Sequence[float] = ()
        self._pauses: list[tuple[float, float]] = []
        """Begin and seconds of each pause that no counted step has had yet."""
        self._slow = False
        self._remaining = RemainingTime()

    def expect_slow_step(self) -> None:
        """Leave the next step out of the estimate of the remaining time: it compiles."""
        self._slow = True

    def change_speed(self) -> None:
        """Note that the next steps may take another time: shares of the ranks, or the code, are others."""
        self._remaining.change()

    def count(self, units: int, ended: float | None = None) -> None:
        """End a step of so many units, now or at that time of the clock."""
        self._units += units
        now = self._clock() if ended is None else ended
        paused_s = sum(seconds for began, seconds in self._pauses if began < now)
        self._pauses = [pause for pause in self._pauses if pause[0] >= now]  # of a step that is counted late
        self._since += paused_s
        self._step_began += paused_s
        self._steps.append(now - self._step_began)
        if not self._slow:
            self._remaining.step(now - self._step_began)
        self._slow = False
        self._step_began = now

    @property
    def step_s(self) -> float:
        """Median of the last five steps, in seconds: the slow first step of a training does not show. 0 before any."""
        return median(self._steps or (0.0,))

    @property
    def last_s(self) -> float:
        """Time of the last step, in seconds; 0 before any."""
        return self._steps[-1] if self._steps else 0.0

    def remaining_s(self, steps_left: int) -> float | None:
        """Estimated seconds for this many steps and the pauses between them; None after fewer than two steps."""
        return self._remaining.estimate(steps_left)

    def read(self, *waited: float) -> tuple[float, list[float]]:
        """Units per second, and for each of `waited`, the seconds so far of waiting for something, its share."""
        now = self._step_began
        seconds = max(now - self._since, 1e-9)
        before = self._waited or (0.0,) * len(waited)
        shares = [min(1.0, (so_far - then) / seconds) for so_far, then in zip(waited, before, strict=True)]
        reading = self._units / seconds, shares
        self._since, self._units, self._waited = now, 0, waited
        return reading

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within."""
        paused_at = self._clock()
        yield
        seconds = self._clock() - paused_at
        self._remaining.pause(seconds)
        self._pauses.append((paused_at, seconds))


class TrainingReporter:
    """Report of a training's steps and of its end, to people, to files and to the orchestrator."""

    def __init__(self, setup: TrainingSetup, loader: MicroBatchLoader, final_step: int) -> None:
        run = setup.run
        self._setup, self._run, self._loader, self._final_step = setup, run, loader, final_step
        self._times = ComputeTimes(run.group.all_gather_text(run.place.label))
        self._loss = math.nan
        self._flops = run.workload.flops_per_unit()
        own_peak = run.hardware.peak_flops
        peaks = run.group.all_gather_scalar(own_peak)
        self._peak = sum(peaks) if all(peaks) else 0.0
        """Peak rate of all ranks together; 0: one of them is not known."""
        size = sum(parameter.numel() for parameter in run.workload.model.parameters())
        run.events.say(
            f"{thousands(size)} parameters, {thousands(run.workload.train_samples)} training samples,"
            f" {run.per_step} per step, {final_step} steps"
        )
        if line := _on_card_use(run, loader.split, own_peak, self._flops):
            run.events.say(line)
        self._began = time.perf_counter()
        begun = TrainingBegun(
            run_id=run.place.run_id, run_dir=run.options.run_dir, first_step=setup.start.step + 1,
            final_step=final_step, options=run.options.as_json(),
        )  # fmt: skip
        self.reporters = Reporters(begun if run.place.rank == 0 else None, run.options.reporter or "", run.events.warn)
        self._state = "done"
        self._ended: float | None = None
        """End of the step to report, in seconds of `time.perf_counter`; None: when its figures are read."""
        self._waited = 0.0, 0.0
        """Seconds until then for which this rank has waited for data, and for the network."""
        self._throughput = Throughput()
        self.paused = self._throughput.paused
        self.expect_slow_step = self._throughput.expect_slow_step
        self.change_speed = self._throughput.change_speed

    @property
    def step_s(self) -> float:
        """Usual time of a step, in seconds."""
        return self._throughput.step_s

    @property
    def last_step_s(self) -> float:
        """Time of the last step, in seconds."""
        return self._throughput.last_s

    def speed_changed(self) -> None:
        """Let shares, forecast and remaining time follow steps that have become faster or slower."""
        self._setup.speed_changed()
        self.change_speed()

    def __enter__(self) -> TrainingReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reporters.end("failed" if kind else self._state)

    def step_ended(self) -> None:
        """Note the end of a step, which may be reported during the next one. A GPU has not computed it by now."""
        self._ended = time.perf_counter() if self._run.hardware.device.type == "cpu" else None
        self._waited = self._loader.waited, self._setup.sync.waited

    def step(self, taken: TakenStep, stats: StepStats, losses: dict[str, float], *, loss: float) -> None:
        """Report the step that has ended, every --log-every steps on rank 0. `losses`: by term."""
        step, lr = taken.step, taken.lr
        run, setup, split = self._run, self._setup, self._loader.split
        ended = time.perf_counter() if self._ended is None else self._ended
        self._loss = loss
        self._times.add(stats.sample_s, split.by_rank)
        self._throughput.count(taken.units, ended)
        first_or_last = step in (setup.start.step + 1, self._final_step)
        if run.place.rank or not (step % run.options.log_every == 0 or first_or_last):
            return
        per_s, (waiting, exchanging) = self._throughput.read(*self._waited)
        cursor = setup.start.cursor + (step - setup.start.step) * run.per_step
        figures = {"loss": loss, "lr": lr, "per_s": per_s, "epoch": cursor / run.workload.train_samples}
        figures |= {"waiting": waiting, "exchanging": exchanging, "grad_norm": stats.norm}
        rate, share = per_s * self._flops, 0.0
        if rate:
            figures["tflops"] = rate / 1e12
        if rate and self._peak:
            figures["mfu"] = share = rate / self._peak
        if setup.forecast_per_s:
            figures["of_forecast"] = per_s / setup.forecast_per_s
        self.reporters.figures("train", step, figures | (losses if len(losses) > 1 else {}))
        balanced = setup.balancer.checks if setup.balancer else None
        others = figures | {"micro_batch": min(split.micro_batch, split.share)} | self._times.read()
        late_s, remaining_s = time.perf_counter() - ended, self._throughput.remaining_s(self._final_step - step)
        if remaining_s is not None:
            remaining_s = max(0.0, remaining_s - late_s)
        run.events.emit(
            StepDone(
                step=step, final_step=self._final_step, remaining_s=remaining_s, unit=run.workload.unit,
                balanced=balanced, ended_at=time.time() - late_s, others=others,
            )
        )  # fmt: skip
        run.events.say(
            f"step {step}/{self._final_step}  loss {loss:.3f}  lr {lr:.1e}  {thousands(per_s)} {run.workload.unit}/s"
            + (f"  {share:.0%} MFU" if share else "")
            + (f"  {waiting:.0%} waiting for data" if waiting >= 0.05 else "")
            + (f"  {exchanging:.0%} waiting for the network" if exchanging >= 0.05 else "")
            + (f"  {duration(remaining_s)} left" if remaining_s else "")
        )

    def stopped(self, step: int) -> None:
        """Report the end of a training that was asked to stop, and mark the run as stopped."""
        run, self._state = self._run, "stopped"
        if run.place.rank == 0:
            run.stopped_marker.write_text(json.dumps({"step": step, "t": time.time()}) + "\n", "utf-8")
        run.events.emit(TrainingStopped(step=step))
        run.events.say(
            f"stopped after step {step}/{self._final_step}; run the same command again to continue from there"
        )

    def reached(self, step: int, early_stopping: EarlyStopping) -> None:
        """Report why a training ends at this step, where that is not its last or where nothing was trained."""
        if early_stopping.exhausted:
            self._run.events.say(f"early stopping at step {step}: {early_stopping.why}")
        elif self._setup.start.step >= self._final_step:
            self._run.events.say(f"step {step} of {self._final_step} is already reached: nothing to train")

    def done(self, step: int) -> None:
        """Report the end of a training that has reached its last step, or stopped early."""
        run, prompt = self._run, self._run.options.prompt
        if run.place.rank == 0 and prompt is not None:
            with uncompiled(run.workload.model):
                text = run.workload.generate(prompt)
            run.events.emit(SampleWritten(text=text))
            run.events.say(f"sample: {text}")
        seconds, memory = time.perf_counter() - self._began, run.hardware.peak_bytes
        run.events.emit(TrainingDone(step=step, loss=self._loss, seconds=seconds, gpu_bytes=memory or None))
        how = f", loss {self._loss:.3f}, {seconds:.0f} s" if step > self._setup.start.step else ""
        gpu = f", {memory / 2**30:.1f} GiB of GPU memory" if memory else ""
        run.events.say(f"done: step {step}{how}{gpu}")
