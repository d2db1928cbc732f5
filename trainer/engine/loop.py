"""The training loop: the same for one process and for many, and for every workload. Read it top to bottom."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from contract.events import GroupJoined, RankStarted
from trainer import checkpoint_folder
from trainer.agent import heartbeat
from trainer.config import RankInfo, TrainOptions
from trainer.data.files import no_room
from trainer.data.to_device import to_device
from trainer.engine.async_save import Checkpointer
from trainer.engine.buffers import Buffers
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.dataloader import MicroBatchLoader
from trainer.engine.evaluate import Evaluator
from trainer.engine.hardware.agreement import agree
from trainer.engine.hardware.attention import attention_by
from trainer.engine.hardware.compiling import is_of_the_compiler
from trainer.engine.hardware.device import prepare_hardware, start_line
from trainer.engine.optimization.optimizer import fill_momentum
from trainer.engine.optimization.schedule import dropout_seed, last_step, learning_rate
from trainer.engine.process_group import expected_backend, join, leave
from trainer.engine.rank_speed import ForwardTimer
from trainer.engine.reporting.events import Events
from trainer.engine.reporting.metrics import TrainingReporter
from trainer.engine.reporting.profile import StepProfiler
from trainer.engine.run import TrainingRun
from trainer.engine.seeding import determinism_explained, seed_everything
from trainer.engine.setup import TrainingSetup, begin
from trainer.engine.start_positions import naming_awaited
from trainer.engine.step_figures import StepFigures
from trainer.engine.step_stats import TakenStep
from trainer.engine.stop_signal import StopSignal
from trainer.engine.weights import CHECKED_EVERY, check_weights_match
from trainer.engine.workload import Workload
from trainer.errors import TrainerError
from trainer.out_of_memory import free_memory, is_out_of_memory

PATIENCE_S = 30.0
"""Seconds for a checkpoint that is being written when a training fails, before torchrun ends the rank."""
Build = Callable[[], Workload]


def train(build: Build, options: TrainOptions, place: RankInfo) -> int:
    """Train to the end, to a wish to stop, or to a failure; returns the exit code."""
    heartbeat.begin(os.environ)
    events, writer = Events(place), Writer()
    try:
        record(_train)(build, options, place, events, writer)  # leaves torchrun a file that says what went wrong
        code = 0
    except Exception as failure:
        error = failure
        if no_room(failure) and not isinstance(failure, TrainerError):  # figures, pictures, TensorBoard's own thread
            error = checkpoint_folder.unwritten("what the run tells", options.run_dir / "checkpoints", failure)
        events.failed(error)
        if not isinstance(error, TrainerError):
            traceback.print_exception(error)
        if is_of_the_compiler(error):
            events.warn("torch.compile failed, not the training: --no-compile goes without it")
        code = error.exit_code if isinstance(error, TrainerError) else 1
    writer.close(PATIENCE_S)
    return leave(place, code)


def _train(build: Build, options: TrainOptions, place: RankInfo, events: Events, writer: Writer) -> None:
    hardware = prepare_hardware(place, options)
    events.emit(
        RankStarted(
            device=str(hardware.device),
            threads=hardware.threads,
            precision=hardware.precision,
            torch=torch.__version__,
            onednn=bool(hardware.onednn),
            backend=expected_backend(place, hardware.device, options.backend),
            attempt=place.attempt,
        )
    )
    per_step = options.batches(place.world_size)
    seed_everything(options.seed)
    workload = build()
    workload.model.to(hardware.device)
    torch.backends.cudnn.benchmark |= workload.same_shapes and not options.deterministic

    with (
        join(place, hardware.device, options.backend) as group,
        StopSignal() as stop,
        determinism_explained(),
        attention_by(options.sdpa, same_shapes=workload.same_shapes),
    ):
        events.emit(GroupJoined(world_size=place.world_size, backend=group.backend, samples_per_step=per_step))
        run = TrainingRun(
            workload=workload, options=options, place=place, hardware=hardware, group=group, events=events, stop=stop,
            writer=writer, per_step=per_step,
        )  # fmt: skip
        # No other reference is kept: a DistributedDataParallel that outlives its process group may hang when that ends.
        _loop(_begun(run))
        group.mark_finished()


def _begun(run: TrainingRun) -> TrainingSetup | None:
    with naming_awaited(run.group):
        hardware = agree(run.hardware, run.group, auto=run.options.precision == "auto")
        run.events.say(start_line(hardware, run.place, run.group.backend, without_gpu=run.group.without_gpu))
        run.group.must_agree("data or options", run.what_must_be_equal())
        return begin(replace(run, hardware=hardware))


def _loop(setup: TrainingSetup | None) -> None:
    if setup is None:
        return
    run, trained, optimizer, sync, start = setup.run, setup.trained, setup.optimizer, setup.sync, setup.start
    workload, options, place, hardware, group = run.workload, run.options, run.place, run.hardware, run.group
    scaler, early_stopping = trained.scaler, trained.early_stopping
    step, cursor = start.step, start.cursor
    final_step = last_step(options, (step, cursor), run.per_step, workload.train_samples)
    order = workload.order(options.seed)
    weights = to_device(list(workload.loss_weights.values()), hardware.device)
    model, timer, buffers = sync.model, ForwardTimer(hardware.device), Buffers(workload.model)
    model.train()
    loader = MicroBatchLoader(workload, setup.split, cursor, workers=setup.workers, device=hardware.device)
    checkpointer = Checkpointer(run, trained, sync, start.step)
    profiler = StepProfiler(options.run_dir / "profile", options.profile, hardware.device, active=place.rank == 0)

    reporting = TrainingReporter(setup, loader, final_step)
    compiling = setup.compiler.steps(run, reporting.expect_slow_step, reporting.speed_changed)
    with reporting as reporter, profiler, compiling as compiler:
        evaluator = Evaluator(setup, reporter.reporters)
        checkpointer.notify = reporter.reporters.checkpoint
        figures = StepFigures(setup, checkpointer, reporter)
        fill_momentum(optimizer)
        run.stop.answers = True
        while step < final_step and not figures.stopping and not early_stopping.exhausted:
            # ── One optimizer step: the same samples for any number of ranks ──────────────────────
            step += 1
            heartbeat.step(step)
            lr = learning_rate(step, final_step, options)
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr * parameters.get("lr_scale", 1.0)
            torch.manual_seed(dropout_seed(options.seed, step, place.rank))
            buffers.keep()
            indices = order.take(cursor, run.per_step)
            targets = workload.target_counts("train", indices)
            # The mean over all targets of the step, for each term. Gradients are averaged over ranks, hence world_size:
            # a mean of the ranks' means is wrong once one has more targets (pytorch/pytorch#67253). A rank that steps
            # by its own gradients sees its share alone.
            ranks = place.world_size if sync.averages else run.per_step / loader.split.share
            scale = weights * ranks / to_device(targets, hardware.device).clamp_min(1e-12)

            # ── Forward and backward passes of the micro-batches ──────────────────────────────────
            local_sums = torch.zeros(len(targets), device=hardware.device)
            micro_batches, out_of_memory = loader.split.micro_batches, False
            try:
                for number in range(1, micro_batches + 1):
                    with profiler.part("data"):
                        batch = next(loader)
                    with sync.gradients(last=number == micro_batches):
                        with profiler.part("forward"), timer.part(workload.count_samples(batch)), hardware.autocast():
                            sums = workload.loss_sums(model, batch)
                        with profiler.part("backward"):  # and, in the last one, the sum of gradients over the ranks
                            # A loss that is NaN or infinite makes the gradients so; to others this adds nothing.
                            factor = scale + 0 * sums.detach()
                            scaler.scale((sums * factor).sum()).backward()  # type: ignore[no-untyped-call]  # torch's own gap
                    local_sums += sums.detach()
                    if number < micro_batches or step < final_step:
                        with profiler.part("data"):
                            loader.copy_ahead()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                out_of_memory = True
            if out_of_memory:  # out here, where no frame of the error holds the tensors
                _prepare_retry(setup, loader, buffers, cursor)
                step -= 1
                continue
            cursor += run.per_step

            # ── Gradients of all ranks, clipped ───────────────────────────────────────────────────
            with profiler.part("exchange"):
                sync.finish()
            figures.settle()  # the last step's, while the device computes this one's
            with profiler.part("optimizer"):
                scaler.unscale_(optimizer)
                own_norm = nn.utils.clip_grad_norm_(workload.model.parameters(), options.clip or math.inf)

            # ── Update of the weights, unless the loss or the gradient is NaN or infinite ─────────
            taken = TakenStep(
                step=step, lr=lr, units=workload.count_units(indices), targets=targets, sample_s=timer.take()
            )
            if figures.late:
                with profiler.part("optimizer"):
                    void = ~own_norm.isfinite()  # on the device: the same on all ranks
                    scaler.step_unless(void, optimizer)
                    buffers.put_back_where(void)
                figures.send(taken, local_sums, own_norm)
            else:
                figures.send(taken, local_sums, own_norm)
                stats, verdict = figures.read()
                with profiler.part("optimizer"):
                    if verdict.action == "skip":
                        buffers.put_back()
                    else:
                        if not math.isfinite(stats.norm):
                            scaler.overflowed(optimizer)  # on another rank, where each steps by its own gradients
                        scaler.step(optimizer)
            with profiler.part("optimizer"):
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
            sync.stepped(step)
            reporter.step_ended()

            # ── Report, evaluate, save ────────────────────────────────────────────────────────────
            evaluates = evaluator.enabled and run.due(options.eval_every, step, cursor)
            saves = run.due(options.checkpoint_every, step, cursor)
            checks, ends = step % CHECKED_EVERY == 0, step == final_step or figures.stopping
            if not figures.late or evaluates or saves or checks or ends or figures.shares or compiler.measures:
                figures.settle()
            if checks:
                check_weights_match(sync, group, step)
            with reporter.paused():
                compiler.step_done(reporter.last_step_s, reporter.step_s, final_step - step)
                if profiler.step():
                    run.events.say(profiler.outcome)
                if figures.shares:
                    loader.resplit(run.rebalance(loader.split, figures.shares, trained, sync), cursor)
                    reporter.change_speed()
                    figures.shares = None
                improved = False
                if evaluates and not figures.stopping:
                    improved = evaluator.evaluate(step, loader.split.micro_batch)
                if improved or saves:
                    checkpointer.save(step, cursor, best=improved)
        loader.close()

        # ── The end, asked for or reached ─────────────────────────────────────────────────────────
        if not figures.stopping and sync.finalize():  # which has changed the weights that all ranks share
            checkpointer.saved_step = evaluator.step = -1
        checkpointer.finish(step, cursor)
        if figures.stopping:
            reporter.stopped(step)
            return
        reporter.reached(step, early_stopping)
        evaluates = evaluator.enabled and step != evaluator.step
        if evaluates and evaluator.evaluate(step, loader.split.micro_batch) and place.rank == 0:
            checkpoint_folder.mark_best(options.run_dir / "checkpoints", step)
    if profiler.ended_early:
        run.events.say(profiler.outcome)
    reporter.done(step)


def _prepare_retry(setup: TrainingSetup, loader: MicroBatchLoader, buffers: Buffers, cursor: int) -> None:
    """Prepare to compute the same samples again in smaller micro-batches, after one was too large for this rank's
    memory: the other ranks wait for this one's gradients meanwhile."""
    split = setup.run.halve_micro_batch(loader.split)
    free_memory()
    setup.sync.interrupted()
    setup.optimizer.zero_grad(set_to_none=True)
    buffers.put_back()
    loader.resplit(split, cursor)
