"""Setup from an assembled run to its first step: model, checkpoint, ranks, shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from torch.optim import Optimizer

from contract.events import OptionsChosen, TrainingDone, TrainingResumed
from trainer import option_layers
from trainer.agent import heartbeat
from trainer.data.order import changed_steps
from trainer.engine.autotune.host_stats import look_around
from trainer.engine.autotune.measure import Own, optimizer_s
from trainer.engine.autotune.tuning import Bench
from trainer.engine.checkpoints import rank_state
from trainer.engine.checkpoints.resume import ResumePoint, TrainState, resume
from trainer.engine.compiler import Compiler
from trainer.engine.dataloader import BatchSplit
from trainer.engine.early_stopping import EarlyStopping
from trainer.engine.guard import Guard
from trainer.engine.hardware.cuda_graphs import must_allow_graphs
from trainer.engine.optimization.optimizer import LossScaler
from trainer.engine.optimization.schedule import last_step
from trainer.engine.rank_speed import ShareBalancer
from trainer.engine.run import TrainingRun
from trainer.engine.sync import methods
from trainer.engine.sync.strategy import Sync
from trainer.engine.sync_plan import SyncPlan, by_speed, must_measure, negotiate, wished_sync
from trainer.engine.weights import share_weights
from trainer.engine.workload import Workload

LONG_S, LONGER_S = 1.5, 4.0
"""Seconds of measuring a sample's time: before a training, and for `--forecast`, whose figures serve later plans."""


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    run: TrainingRun
    """Run of the ranks that train."""
    trained: TrainState
    optimizer: Optimizer
    start: ResumePoint
    split: BatchSplit
    workers: int
    sync: Sync
    balancer: ShareBalancer | None
    """None where shares stay as they are."""
    compiler: Compiler
    planned_per_s: float
    """Units per second that were forecast for the model as it was then; 0: none."""

    @property
    def forecast_per_s(self) -> float:
        """Forecast for the model as it is now, compiled or not."""
        return self.planned_per_s * (1 + self.compiler.gain)

    def speed_changed(self) -> None:
        """Let the shares and the forecast follow steps that have become faster or slower."""
        self.trained.sync_state["gain"] = self.compiler.gain
        if self.balancer:
            self.balancer.restart()


def begin(run: TrainingRun) -> TrainingSetup | None:
    """Take the five steps from an assembled run to a training: what fits, where it continues, the program that runs,
    who trains how, and what the steps need. None: there is nothing to train here. To be called by all ranks."""
    bench = Bench(run.workload, run.hardware, _whole_step(run), run.events)
    optimizer, step_s = _fit(run, bench)
    trained, start = _continue(run, optimizer)
    bench.cursor = start.cursor
    compiler = _compile(run, bench)
    plan = _plan(run, bench, trained, step_s, start)
    if run.options.forecast:
        run.events.emit(TrainingDone(step=start.step, seconds=0.0))
        return None
    among = _among(run, plan, trained, start)
    if among is None:
        return None
    bench.cut = replace(bench.cut, place=among.place, shares=plan.shares, nodes=among.group.nodes)
    compiler.gain = plan.gain if compiler.is_compiled else 0.0
    return _prepare(among, bench, trained, start, plan, compiler)


def _whole_step(run: TrainingRun) -> BatchSplit:
    """A step with all ranks, in micro-batches as large as a batch."""
    return BatchSplit(
        place=run.place,
        seed=run.options.seed,
        per_step=run.per_step,
        micro_batch=run.options.batch_size,
        sharded=run.workload.sharded,
        nodes=run.group.nodes,
    )


def _fit(run: TrainingRun, bench: Bench) -> tuple[Optimizer, float]:
    """Cut the bench's step as the memory holds it; return the optimizer, and the seconds of its step where a plan
    needs them."""
    heartbeat.part("memory")
    optimizer = run.optimizer()
    copies = 0 if run.group.alone else methods.copies_held(wished_sync(run.options))
    bench.choose_micro_batch(run.options, optimizer, copies)
    heartbeat.part("optimizer")
    return optimizer, optimizer_s(run.workload.model, optimizer, run.group) if must_measure(run) else 0.0


def _continue(run: TrainingRun, optimizer: Optimizer) -> tuple[TrainState, ResumePoint]:
    """State of the training, from the checkpoint where there is one."""
    heartbeat.part("resume")
    options, hardware, events = run.options, run.hardware, run.events
    trained = TrainState(
        model=run.workload.model,
        optimizer=optimizer,
        scaler=LossScaler(hardware.device.type, enabled=hardware.scales),
        guard=Guard(on_nan=options.on_nan, on_spike=options.on_spike, factor=options.spike_factor),
        early_stopping=EarlyStopping(
            options.early_stopping or options.best, options.patience if options.early_stopping else 0
        ),
    )
    start = resume(trained, run.workload, options, run.group, events.say)
    trained.step_sizes[:] = changed_steps(trained.step_sizes, start.cursor, run.per_step)
    run.workload.step_sizes = trained.step_sizes
    if start.step:
        events.emit(TrainingResumed(step=start.step, checkpoint=str(start.source or "")))
        events.say(f"resumed at step {start.step} from {start.source}")
    return trained, start


def _compile(run: TrainingRun, bench: Bench) -> Compiler:
    """Compile the model if that is asked for or has paid before: what follows measures the program that will run."""
    must_allow_graphs(
        run.options,
        run.workload.model,
        run.hardware.device,
        ranks=run.place.world_size,
        micro_batches=bench.cut.micro_batches,
    )
    compiler = Compiler(run)
    compiler.start()
    bench.first_pass = compiler.first_pass
    return compiler


def _plan(run: TrainingRun, bench: Bench, trained: TrainState, step_s: float, start: ResumePoint) -> SyncPlan:
    """Plan who trains, with what shares and by which method."""
    heartbeat.part("plan")
    final = last_step(run.options, (start.step, start.cursor), run.per_step, run.workload.train_samples)
    return negotiate(
        run, _own(run, bench, step_s), lambda seconds: bench.sample_s(run.group.barrier, seconds),
        trained.sync_state, max(0, final - start.step),
    )  # fmt: skip


def _among(run: TrainingRun, plan: SyncPlan, trained: TrainState, start: ResumePoint) -> TrainingRun | None:
    """The run among the ranks that train; None: this rank does not, and the others have ended."""
    events = run.events
    group = run.group if len(plan.ranks) == run.place.world_size else run.group.subgroup(plan.ranks)
    if group is None:
        events.warn("left out of this run; it waits for the others' end")
        run.stop.answers = True
        run.group.wait_finished()
        return None
    among = replace(run, place=group.place, group=group)
    events.speak(among.place.rank == 0)
    if warning := _other_stream(run.workload, start.cursor, len(trained.sync_state.get("ranks", ())), len(plan.ranks)):
        events.warn(warning)
    trained.sync_state.update(asdict(plan))
    return among


def _other_stream(workload: Workload, cursor: int, before: int, ranks: int) -> str:
    """Warning where a run that reads a stream is resumed within an epoch on another number of ranks than `before`."""
    if not workload.streamed or before in (0, ranks) or cursor % workload.train_samples == 0:
        return ""
    return (
        f"resumed within an epoch, with another number of ranks ({before} before, {ranks} now): each number has its own"
        " order of a stream, so until the next epoch some samples come twice and others not at all; data that `prepare`"
        " has written has one order for all"
    )


def _prepare(
    run: TrainingRun, bench: Bench, trained: TrainState, start: ResumePoint, plan: SyncPlan, compiler: Compiler
) -> TrainingSetup:
    """Processes that load data, the options on record, equal weights, and the sync method."""
    heartbeat.part("sync")
    options, events, model = run.options, run.events, run.workload.model
    shares = bench.cut.by_rank
    workers = bench.workers(options, run.group)
    if run.place.rank == 0:
        run.stopped_marker.unlink(missing_ok=True)
        option_layers.keep(options)
        events.say(option_layers.summary(options))
        events.emit(OptionsChosen(options=option_layers.as_rows(options)))
    must_allow_graphs(options, model, run.hardware.device, ranks=1, micro_batches=bench.cut.micro_batches)
    share_weights(model, run.group)
    sync = _sync(run, bench, plan.sync, trained, start.step)
    if start.step and start.sync == plan.sync:  # what another way has kept is of no use to this one
        rank_state.restore(options.run_dir, start.step, sync, run.group, events.warn)
    return TrainingSetup(
        run=run,
        trained=trained,
        optimizer=trained.optimizer,
        start=start,
        split=bench.cut,
        workers=workers,
        sync=sync,
        balancer=ShareBalancer(shares) if by_speed(run) else None,
        compiler=compiler,
        planned_per_s=plan.per_s,
    )


def _own(run: TrainingRun, bench: Bench, step_s: float) -> Callable[[], Own]:
    """Measures this rank; all ranks are to do so at once."""

    def measure() -> Own:
        alone = run.options.forecast  # nothing waits to be trained: there is time to look longer
        sample_s = bench.sample_s(run.group.barrier, LONGER_S if alone else LONG_S)
        around = None
        if alone:
            around = look_around(run.options.run_dir, run.hardware.device, bench.loaded_per_s())
        size = min(bench.cut.micro_batch, bench.cut.share)
        return Own(sample_s=sample_s, step_s=step_s, micro_batch=size, around=around)

    return measure


def _sync(run: TrainingRun, bench: Bench, name: str, trained: TrainState, step: int) -> Sync:
    context = methods.SyncContext(
        model=run.workload.model,
        optimizer=trained.optimizer,
        options=run.options,
        group=run.group,
        loss_scale=trained.scaler.on_device,
    )
    static_graph = False
    if name == "fp32" and not run.group.alone:
        # Before DDP is made: a pass without it would be the first of its static graph.
        unused = bench.unused()
        static_graph = not sum(run.group.all_gather_scalar(float(len(unused)))) and _static_graph(run, bench.cut)
    sync = methods.build(name, context, step, static_graph=static_graph)
    sync.weight = bench.cut.weight
    bench.warm_up(sync)
    return sync


def _static_graph(run: TrainingRun, split: BatchSplit) -> bool:
    """torch 2.13 fails with an internal assertion where a static graph's first backward pass is one without sync. All
    ranks must decide alike: a static graph has one collective more."""
    options = run.options
    # Not by `split.micro_batch`, which a rank with less memory has made smaller.
    accumulates = options.micro_batch_size is not None or split.largest_share > options.batch_size
    return options.static_graph and not by_speed(run) and not accumulates
