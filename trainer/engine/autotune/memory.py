"""`--memory auto`: the fastest settings with which a step fits into this rank's memory.

Gradient checkpointing, the chunk of the loss and the micro-batch are each rank's own; the optimizer is alike on all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from contract.cost_model.memory import MIB, TransformerTraining, forecast_memory
from trainer.config import OptionValue, TrainOptions
from trainer.data.files import write_atomic
from trainer.engine.autotune import micro_batch
from trainer.engine.autotune.host_stats import node_memory
from trainer.engine.autotune.memory_settings import (
    CPU_PASS,
    MOST_PASS,
    RECOMPUTE_COST,
    MemoryChoices,
    MemorySettings,
    OptimizerSettings,
    by_user,
    first_that_fits,
    optimizers,
)
from trainer.engine.autotune.stand_in import stand_in
from trainer.engine.autotune.tuning import Bench
from trainer.engine.optimization.optimizer import standing_still
from trainer.engine.run import TrainingRun
from trainer.engine.sync import methods
from trainer.engine.sync.strategy import Sync
from trainer.engine.sync_plan import wished_sync
from trainer.engine.workload import Workload
from trainer.errors import TooLittleMemoryError
from trainer.models.layers import RecomputedBlock, recompute
from trainer.out_of_memory import gpu_memory

KEPT = "memory.json"
"""File of a run with the optimizer's format, from which a resumed run does not go back to one with more bits."""


class Trials(Protocol):
    """Answers of this rank alone, without another one's part."""

    @property
    def memory(self) -> str:
        """The memory that must hold it, in words."""
        ...

    def fits(self, settings: MemorySettings, optimizer: OptimizerSettings) -> bool: ...

    def pass_samples(self, settings: MemorySettings, optimizer: OptimizerSettings) -> float:
        """Time of a pass beside its samples, in samples; `settings` fit, with twice the micro-batch too."""
        ...


def choose_memory(run: TrainingRun, bench: Bench) -> TrainingRun:
    """Choose for this rank, and let the model and `bench` follow; return the run with the chosen optimizer. To be
    called by all ranks, before the optimizer has taken or loaded a step."""
    options, formats = run.options, optimizers(run.options)
    choices = open_choices(run.workload, options, bench.cut.share, on_gpu=run.hardware.on_gpu)
    trials = _trials(run, bench)
    with ExitStack() as stack:
        if isinstance(trials, StepTrials):
            stack.enter_context(trials)
        own = _first_format(choices, formats, trials) if trials else 0
        before = _remembered(run, len(formats) - 1) if run.place.rank == 0 else 0
        everyones = run.group.all_gather_scalar(float(max(own, before)))
        number = int(max(everyones))
        if number == len(formats):
            short = [str(rank) for rank, needed in enumerate(everyones) if needed == number]
            raise TooLittleMemoryError(f"rank {', '.join(short)}: {micro_batch.NOT_EVEN_ONE}")
        needs = " (as until now)" if number == before else f" (rank {everyones.index(number)} needs it)"
        chosen, why = formats[number], needs if number > own else ""
        found = _settings(choices, chosen, trials) if trials else None
    if run.place.rank == 0:
        _remember(run, chosen)
    run = _with_optimizer(run, chosen)
    if found:
        settings, reason = found
        apply(run.workload, settings)
        bench.cut = replace(bench.cut, micro_batch=settings.micro_batch)
        nothing = "" if choices.several else " (nothing else to choose for this model)"
        said = f"{settings}{nothing}, {chosen}{why}: {reason}"
    else:
        said = f"nothing to choose but the micro-batch: no forecast for {run.workload.name} on a CPU; {chosen}{why}"
    run.events.say(f"memory auto: {said}{_others(run, str(found[0]) if found else '')}")
    if not run.hardware.on_gpu and (found is None or options.micro_batch_size == "auto"):
        wished = replace(options, micro_batch_size=options.micro_batch_size or "auto")
        bench.choose_micro_batch(wished, run.optimizer(), _no_sync, most=bench.cut.micro_batch if found else 0)
    return run


def _others(run: TrainingRun, own: str) -> str:
    """Settings of the ranks that have chosen other ones than rank 0, to be appended to its line."""
    everyones = run.group.all_gather_text(own)
    others = [f"rank {n}: {theirs}" for n, theirs in enumerate(everyones) if theirs and theirs != everyones[0]]
    return f"; {'; '.join(others)}" if others else ""


def open_choices(workload: Workload, options: TrainOptions, share: int, *, on_gpu: bool) -> MemoryChoices:
    """Values that the user leaves open, for a rank with `share` samples of a step."""
    blocks = list(_blocks(workload.model))
    again = not blocks or any(block.recompute for block in blocks) or by_user(options, "gradient_checkpointing")
    costs = RECOMPUTE_COST["gpu" if on_gpu else "cpu"]
    chunks = not workload.loss_chunks or by_user(options, "loss_chunk")
    wished = options.micro_batch_size
    if isinstance(wished, int) or options.cuda_graphs:  # graphs are of steps with one pass
        sizes = [min(wished, share) if isinstance(wished, int) else share]
    else:
        most = options.batch_size if wished is None and not on_gpu else share
        sizes = [min(most, share)]
        while sizes[-1] > 1:
            sizes.append(1 << (sizes[-1] - 1).bit_length() - 1)
    return MemoryChoices(
        recompute=(None,) if again else tuple(costs),
        loss_chunk=(None,) if chunks else ("auto", *workload.loss_chunks),
        micro_batch=tuple(sizes),
        recompute_cost=costs,
    )


def apply(workload: Workload, settings: MemorySettings) -> None:
    """Let the model compute by `settings`, before it is compiled."""
    if settings.recompute is not None:
        recompute(_blocks(workload.model), settings.recompute)
    if settings.loss_chunk is not None:
        workload.set_loss_chunk(settings.loss_chunk)


class StepTrials:
    """Whole steps, on a GPU: what does not fit runs out of memory. A context, within which the optimizer of the last
    trial keeps its state, as in a training."""

    def __init__(self, run: TrainingRun, bench: Bench) -> None:
        self._run, self._bench = run, bench
        self._stack = ExitStack()
        self._made: tuple[OptimizerSettings, Callable[[int], None]] | None = None

    @property
    def memory(self) -> str:
        return f"the {gpu_memory(self._run.hardware.device) / (1 << 30):.1f} GiB of this GPU"

    def __enter__(self) -> StepTrials:
        return self

    def __exit__(self, *_: object) -> None:
        self._made = None
        self._stack.close()

    def fits(self, settings: MemorySettings, optimizer: OptimizerSettings) -> bool:
        apply(self._run.workload, settings)
        first = self._made is None or self._made[0] != optimizer
        step = self._step(optimizer)
        # A first step makes the optimizer's state at its end; only a second one holds it during its passes.
        return all(micro_batch.fits(step, settings.micro_batch) for _ in range(1 + first))

    def pass_samples(self, settings: MemorySettings, optimizer: OptimizerSettings) -> float:  # noqa: ARG002
        apply(self._run.workload, settings)
        size = settings.micro_batch
        small, large = self._bench.pass_s(size), self._bench.pass_s(2 * size)
        sample_s = (large - small) / size
        beside = small - sample_s * size
        return min(MOST_PASS, max(0.0, beside / sample_s)) if sample_s > 0 else MOST_PASS

    def _step(self, settings: OptimizerSettings) -> Callable[[int], None]:
        if self._made is None or self._made[0] != settings:
            self._made = None
            self._stack.close()  # the state of the one before
            run = _with_optimizer(self._run, settings)
            self._made = settings, self._whole_step(run, run.optimizer())
        return self._made[1]

    def _whole_step(self, run: TrainingRun, optimizer: Optimizer) -> Callable[[int], None]:
        step = self._stack.enter_context(standing_still(run.workload.model, optimizer))
        context = methods.SyncContext(
            model=run.workload.model, optimizer=optimizer, options=run.options, group=run.group
        )
        return lambda size: self._bench.whole_step(size, lambda: stand_in(wished_sync(run.options), context), step)


@dataclass(frozen=True, kw_only=True)
class ForecastTrials:
    """Forecasts, on a CPU: what does not fit there is killed by the kernel."""

    training: TransformerTraining
    ranks: int
    """Number of ranks on this node, which share its memory."""
    world_size: int
    first: bool
    """Whether rank 0 is among them."""
    share: int
    limit_bytes: int

    @property
    def memory(self) -> str:
        return f"the {self.limit_bytes // MIB} MiB of this node"

    def needed_mib(self, settings: MemorySettings, optimizer: OptimizerSettings) -> int:
        usual = self.training
        chunk = settings.loss_chunk
        training = replace(
            usual,
            micro_batch=settings.micro_batch,
            passes=-(-self.share // settings.micro_batch),
            gradient_checkpointing=usual.gradient_checkpointing if settings.recompute is None else settings.recompute,
            loss_chunk=chunk if isinstance(chunk, int) else usual.loss_chunk,
            optimizer_state=optimizer.state,
        )
        return forecast_memory(training, ranks=self.ranks, world_size=self.world_size, first=self.first).needed_mib

    def fits(self, settings: MemorySettings, optimizer: OptimizerSettings) -> bool:
        return self.needed_mib(settings, optimizer) * MIB <= self.limit_bytes

    def pass_samples(self, settings: MemorySettings, optimizer: OptimizerSettings) -> float:  # noqa: ARG002
        return CPU_PASS


def _trials(run: TrainingRun, bench: Bench) -> StepTrials | ForecastTrials | None:
    """None: neither is possible."""
    if run.hardware.on_gpu:
        return StepTrials(run, bench)
    training = run.workload.transformer_sizes()
    if training is None:
        return None
    return ForecastTrials(
        training=training,
        ranks=run.place.local_world_size,
        world_size=run.place.world_size,
        first=run.place.node_rank == 0,
        share=bench.cut.share,
        limit_bytes=node_memory(),
    )


def _first_format(choices: MemoryChoices, formats: list[OptimizerSettings], trials: Trials) -> int:
    """Number of the first format with which this rank can train at all; their count: none."""
    return next((n for n, one in enumerate(formats) if trials.fits(choices.least, one)), len(formats))


def _settings(choices: MemoryChoices, optimizer: OptimizerSettings, trials: Trials) -> tuple[MemorySettings, str]:
    # From one sample up: a batch far too large might exhaust the memory of the CPU that loads it.
    fitting: list[int] = []
    failed: list[MemorySettings] = []
    for size in reversed(choices.micro_batch):
        one = replace(choices.least, micro_batch=size)
        if not trials.fits(one, optimizer):
            failed.append(one)
            break
        fitting.insert(0, size)
    choices = replace(choices, micro_batch=tuple(fitting))
    pass_samples = trials.pass_samples(choices.least, optimizer) if len(fitting) > 1 else 0.0
    found, slower = first_that_fits(choices, pass_samples, lambda one: trials.fits(one, optimizer))
    failed += slower
    if found is None:
        raise TooLittleMemoryError(micro_batch.NOT_EVEN_ONE)
    if not failed:
        return found, f"the fastest there is, and it fits into {trials.memory}"
    return found, f"the fastest that fits into {trials.memory}; too much are {'; '.join(map(str, failed[-2:]))}"


def _with_optimizer(run: TrainingRun, chosen: OptimizerSettings) -> TrainingRun:
    options = run.options
    given: dict[str, Any] = {"optimizer_state": chosen.state, "optimizer_offload": chosen.offload}
    changed = {name: value for name, value in given.items() if value != getattr(options, name)}
    origins = {name: OptionValue(value, "--memory auto") for name, value in changed.items()}
    return replace(run, options=replace(options, **changed, chosen={**options.chosen, **origins}))


def _blocks(model: nn.Module) -> Iterator[RecomputedBlock]:
    """Blocks that are trained, first to last: nothing is kept of frozen ones."""
    for module in model.modules():
        if isinstance(module, RecomputedBlock) and any(one.requires_grad for one in module.parameters()):
            yield module


def _no_sync() -> Sync:
    raise AssertionError("a CPU's micro-batch is chosen by passes alone")


def _remembered(run: TrainingRun, most: int) -> int:
    """Number of the format that this run has had, among those that are open now; 0 without one."""
    try:
        kept: dict[str, object] = json.loads((run.options.run_dir / KEPT).read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    again = run.options.resume != "never" or (run.place.run_id and kept.get("run_id") == run.place.run_id)
    if not again or not any((run.options.run_dir / "checkpoints").glob("step-*")):
        return 0
    names: Iterable[str] = map(str, optimizers(run.options))
    return min(most, next((n for n, name in enumerate(names) if name == kept.get("optimizer")), 0))


def _remember(run: TrainingRun, chosen: OptimizerSettings) -> None:
    kept = {"run_id": run.place.run_id, "optimizer": str(chosen)}
    run.options.run_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(run.options.run_dir / KEPT, json.dumps(kept).encode())
