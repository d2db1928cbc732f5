"""The training loop: the same for one process and for many, and for every workload. Read it top to bottom."""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from contract.cost_model.units import thousands
from contract.events import GroupJoined, RankStarted, SampleWritten, StepDone, TrainingDone, TrainingStopped
from trainer.agent import heartbeat
from trainer.config import RankInfo, TrainOptions
from trainer.data.files import no_room
from trainer.engine.async_save import Saving
from trainer.engine.buffers import Buffers
from trainer.engine.checkpoints import checkpoint
from trainer.engine.checkpoints.writer import Writer
from trainer.engine.dataloader import MicroBatchLoader
from trainer.engine.hardware.agreement import agree
from trainer.engine.hardware.compiling import is_of_the_compiler
from trainer.engine.hardware.device import prepare_hardware, start_line
from trainer.engine.hardware.reproducible import determinism_explained, seed_everything
from trainer.engine.optimization.schedule import dropout_seed, due, last_step, learning_rate
from trainer.engine.process_group import expected_backend, join, leave
from trainer.engine.reporting.events import Events
from trainer.engine.reporting.metrics import Records, Speed
from trainer.engine.reporting.profile import Profile
from trainer.engine.run import Run
from trainer.engine.setup import TrainingSetup, begin
from trainer.engine.step_stats import tell
from trainer.engine.step_timer import Pace, Times
from trainer.engine.stop_signal import StopSignal
from trainer.engine.weights import CHECKED_EVERY, must_be_alike
from trainer.engine.workload import Workload
from trainer.errors import TrainerError
from trainer.out_of_memory import free_memory, is_out_of_memory

MEASURED = 5
"""Steps after which it is known whether compiling pays."""
PATIENCE_S = 30.0
"""For a checkpoint that is being written when a training fails, before torchrun ends the rank."""
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
            error = checkpoint.unwritten("what the run tells", options.run_dir / "checkpoints", failure)
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

    with join(place, hardware.device, options.backend) as group, StopSignal() as stop, determinism_explained():
        events.emit(GroupJoined(world_size=place.world_size, backend=group.backend, samples_per_step=per_step))
        hardware = agree(hardware, group, auto=options.precision == "auto")
        events.say(start_line(hardware, place, group.backend, without_gpu=group.without_gpu))
        run = Run(
            workload=workload, options=options, place=place, hardware=hardware, group=group, events=events, stop=stop,
            writer=writer, per_step=per_step,
        )  # fmt: skip
        group.must_agree("data or options", run.what_must_be_equal())
        # No other reference is kept: a DistributedDataParallel that outlives its process group may hang when that ends.
        _loop(begin(run))
        group.mark_finished()


def _loop(begun: TrainingSetup | None) -> None:
    if begun is None:
        return
    run, trained, optimizer, sync, start = begun.run, begun.trained, begun.optimizer, begun.sync, begun.start
    workload, options, place = run.workload, run.options, run.place
    hardware, group, events = run.hardware, run.group, run.events
    scaler, guard, watch = trained.scaler, trained.guard, trained.watch
    first = place.rank == 0

    samples = workload.train_samples
    final_step = last_step(options, (start.step, start.cursor), run.per_step, samples)
    evaluates = bool(options.eval_every and workload.validation_samples)
    cut = begun.cut
    model, pace, times = sync.model, Pace(hardware.device), Times(group.all_gather_text(place.label))
    model.train()
    feed = MicroBatchLoader(workload, cut, start.cursor, workers=begun.workers, pin=hardware.on_gpu)
    order = workload.order(options.seed)
    buffers = Buffers(workload.model)
    weights = torch.tensor(list(workload.loss_weights.values()), device=hardware.device)
    size = sum(parameter.numel() for parameter in workload.model.parameters())
    events.say(
        f"{thousands(size)} parameters, {thousands(workload.train_samples)} training samples,"
        f" {run.per_step} per step, {final_step} steps"
    )

    step, cursor, loss = start.step, start.cursor, math.nan
    saving, saved_at, evaluated_at = Saving(run, trained, sync), start.step, -1
    stopping = False
    began = time.perf_counter()

    with (
        Records(options.run_dir, active=first, first_step=start.step + 1) as records,
        Profile(options.run_dir / "profile", options.profile, hardware.device, active=first) as profile,
    ):
        speed = Speed()
        while step < final_step and not stopping and not watch.exhausted:
            # ── One optimizer step: the same samples for any number of ranks ──────────────────────
            step += 1
            heartbeat.step(step)
            lr = learning_rate(step, final_step, options)
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr * parameters.get("lr_scale", 1.0)
            torch.manual_seed(dropout_seed(options.seed, step, place.rank))
            buffers.keep()
            everyones = order.take(cursor, run.per_step)
            targets = workload.target_counts("train", everyones)
            # The mean over all targets of the step, for each term. Gradients are averaged over ranks, hence world_size:
            # a mean of the ranks' means is wrong once one has more targets (pytorch/pytorch#67253). A rank that steps
            # by its own gradients sees its share alone.
            ranks = place.world_size if sync.averages else run.per_step / cut.share
            scale = weights * ranks / torch.tensor(targets, device=hardware.device).clamp_min(1e-12)

            local_sums = torch.zeros(len(targets), device=hardware.device)
            too_large = False
            try:
                for number in range(1, cut.micro_batches + 1):
                    last = number == cut.micro_batches
                    with profile.part("data"):
                        batch = hardware.move(next(feed))
                    with sync.gradients(last=last):
                        with profile.part("forward"), pace.part(workload.count_samples(batch)), hardware.autocast():
                            sums = workload.loss_sums(model, batch)
                        with profile.part("backward"):  # and, in the last one, the sum of gradients over the ranks
                            scaler.scale((sums * scale).sum()).backward()  # type: ignore[no-untyped-call]
                    local_sums += sums.detach()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                too_large = True
            if too_large:  # out here, where no frame of the error holds the tensors
                # The same samples again in smaller parts: the other ranks wait for this one's gradients meanwhile.
                cut = run.smaller(cut)
                free_memory()
                sync.interrupted()
                optimizer.zero_grad(set_to_none=True)
                buffers.put_back()
                feed.recut(cut, cursor)
                step -= 1
                continue
            cursor += run.per_step

            with profile.part("exchange"):
                sync.finish()
            with profile.part("optimizer"):
                scaler.unscale_(optimizer)
                own_norm = nn.utils.clip_grad_norm_(workload.model.parameters(), options.clip or math.inf)

            # One small all-reduce tells all ranks the loss, whose is NaN or infinite, if one was asked to stop, how
            # fast each computes, and whether what each keeps of the last checkpoint is written.
            mine = local_sums.tolist(), float(own_norm)
            told = tell(group, *mine, run.stop.asked, pace.read(), saving.own_written)
            times.hear(told.sample_s, cut.shares or cut.equal)
            saving.look(all_written=told.written)
            stopping, norm = told.stopping, told.norm
            means = [total / (count or 1.0) for total, count in zip(told.sums, targets, strict=True)]
            losses = dict(zip(workload.loss_weights, means, strict=True))
            loss = sum(workload.loss_weights[name] * mean for name, mean in losses.items())

            with profile.part("optimizer"):
                verdict = guard.judge(step, loss, told.at_fault, None if scaler.is_enabled() else norm)
                if verdict.action == "stop":
                    raise TrainerError(verdict.message)
                if verdict.message:
                    events.say(verdict.message)
                if verdict.action == "continue":
                    if not math.isfinite(norm):
                        scaler.overflowed(optimizer)  # on another rank, where each steps by its own gradients
                    scaler.step(optimizer)
                else:
                    buffers.put_back()
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
            sync.stepped(step)
            if step % CHECKED_EVERY == 0:
                must_be_alike(sync, group, step)

            # ── What people and the orchestrator see of it ────────────────────────────────────────
            speed.count(workload.count_units(everyones))
            if first and (step % options.log_every == 0 or step in (start.step + 1, final_step)):
                per_s, (waiting, exchanging) = speed.read(feed.waited, sync.waited)
                figures = {"loss": loss, "lr": lr, "per_s": per_s, "epoch": cursor / workload.train_samples}
                figures |= {"waiting": waiting, "exchanging": exchanging, "grad_norm": norm}
                if begun.forecast_per_s:
                    figures["of_forecast"] = per_s / begun.forecast_per_s
                records.write("train", step, figures | (losses if len(losses) > 1 else {}))
                balanced = begun.balance.looked if begun.balance else None
                events.emit(StepDone(step=step, unit=workload.unit, balanced=balanced, others=figures | times.read()))
                events.say(
                    f"step {step}/{final_step}  loss {loss:.3f}  lr {lr:.1e}  {thousands(per_s)} {workload.unit}/s"
                    + (f"  {waiting:.0%} waiting for data" if waiting >= 0.05 else "")
                    + (f"  {exchanging:.0%} waiting for the network" if exchanging >= 0.05 else "")
                )

            go_on = speed.pause()
            if options.compile == "auto" and step == start.step + MEASURED and not options.deterministic:
                run.compile_if_it_pays((time.perf_counter() - began) / MEASURED, final_step - step)
            if profile.step():
                events.say(profile.outcome)
            shares = begun.balance.hear(told.sample_s) if begun.balance else None
            if shares:
                cut = run.rebalance(cut, shares, trained, sync)
                feed.recut(cut, cursor)
            improved = False
            if evaluates and due(options.eval_every, step, cursor, run.per_step, samples) and not stopping:
                improved = run.evaluate(step, cut.micro_batch, trained, sync, records)
                evaluated_at = step
            if improved or due(options.checkpoint_every, step, cursor, run.per_step, samples):
                saving.save(step, cursor, best=improved)
                saved_at = step
            go_on()
        feed.close()

        # ── The end, asked for or reached ─────────────────────────────────────────────────────────
        if not stopping and sync.finalize():
            saved_at = evaluated_at = -1
        if step != saved_at:
            saving.save(step, cursor, last=True)
        saving.wait()
        if stopping:
            if first:
                run.stopped_marker.write_text(json.dumps({"step": step, "t": time.time()}) + "\n", "utf-8")
            events.emit(TrainingStopped(step=step))
            events.say(f"stopped after step {step}/{final_step}; run the same command again to continue from there")
            return
        if watch.exhausted:
            events.say(f"early stopping at step {step}: {watch.why}")
        elif start.step >= final_step:
            events.say(f"step {start.step} of {final_step} is already reached: nothing to train")
        if evaluates and step != evaluated_at and run.evaluate(step, cut.micro_batch, trained, sync, records) and first:
            checkpoint.mark_best(options.run_dir / "checkpoints", step)
    if profile.ended_early:
        events.say(profile.outcome)
    if first and options.prompt is not None:
        text = workload.generate(options.prompt)
        events.emit(SampleWritten(text=text))
        events.say(f"sample: {text}")
    seconds, memory = time.perf_counter() - began, hardware.peak_bytes
    events.emit(TrainingDone(step=step, loss=loss, seconds=seconds, gpu_bytes=memory or None))
    how = f", loss {loss:.3f}, {seconds:.0f} s" if step > start.step else ""
    events.say(f"done: step {step}{how}" + (f", {memory / 2**30:.1f} GiB of GPU memory" if memory else ""))
