"""The training loop: the same for one process and for many, and for every workload. Read it top to bottom."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.config import Place, TrainOptions
from trainer.data.order import SampleStream, share
from trainer.engine import checkpoint
from trainer.engine.device import Hardware, prepare_hardware, start_line
from trainer.engine.events import Events
from trainer.engine.metrics import Records, Speed, thousands
from trainer.engine.process_group import Group, expected_backend, join, leave
from trainer.engine.resume import Trained, resume
from trainer.engine.schedule import dropout_seed, last_step, learning_rate
from trainer.engine.stop_signal import StopSignal
from trainer.engine.workload import Workload
from trainer.errors import TrainerError

Build = Callable[[], Workload]


def train(build: Build, options: TrainOptions, place: Place) -> int:
    """Train to the end, to a wish to stop, or to a failure; returns the exit code."""
    events = Events(place)
    try:
        record(_train)(build, options, place, events)  # leaves torchrun a file that says what went wrong
        code = 0
    except Exception as error:
        events.failed(error)
        if not isinstance(error, TrainerError):
            traceback.print_exception(error)
        code = error.exit_code if isinstance(error, TrainerError) else 1
    return leave(place, code)


def _train(build: Build, options: TrainOptions, place: Place, events: Events) -> None:
    hardware = prepare_hardware(place, amp=options.amp)
    events.emit(
        "started",
        device=str(hardware.device),
        threads=hardware.threads,
        precision=hardware.precision,
        torch=torch.__version__,
        onednn=bool(hardware.onednn),
        backend=expected_backend(place, hardware.device, options.backend),
        attempt=place.attempt,
    )
    sequences = options.batches(place.world_size)
    torch.manual_seed(options.seed)
    workload = build()
    workload.model.to(hardware.device)

    with join(place, hardware.device, options.backend) as group, StopSignal() as stop:
        events.emit("joined", world_size=place.world_size, backend=group.backend)
        events.say(start_line(hardware, place, group.backend))
        group.must_agree("data or options", _what_must_be_equal(workload, options))
        run = Run(place=place, hardware=hardware, group=group, events=events, stop=stop, sequences=sequences)
        _loop(workload, options, run)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What stays the same from the first step to the last."""

    place: Place
    hardware: Hardware
    group: Group
    events: Events
    stop: StopSignal
    sequences: int
    """In one optimizer step, over all ranks."""


def _loop(workload: Workload, options: TrainOptions, run: Run) -> None:
    place, hardware, group, events = run.place, run.hardware, run.group, run.events
    first = place.rank == 0

    # ── What is trained, and from where it goes on ────────────────────────────────────────────────
    optimizer = _optimizer(workload.model, options, hardware)
    scaler = torch.amp.GradScaler(hardware.device.type, enabled=hardware.dtype is torch.float16)
    trained = Trained(model=workload.model, optimizer=optimizer, scaler=scaler)
    stopped_marker = options.run_dir / "STOPPED"
    if first:
        stopped_marker.unlink(missing_ok=True)
    start = resume(trained, workload, options, group, events.say)
    if start.step:
        events.emit("resumed", step=start.step, checkpoint=str(start.source or ""))
        events.say(f"resumed at step {start.step} from {start.source}")
    compiled = hardware.on_gpu if options.compile is None else options.compile
    model = group.wrap(torch.compile(workload.model) if compiled else workload.model)  # type: ignore[arg-type]
    model.train()

    final_step = last_step(options, (start.step, start.cursor), run.sequences, workload.train_samples)
    stream = SampleStream(workload.train_samples, options.seed)
    size = sum(parameter.numel() for parameter in workload.model.parameters())
    events.say(
        f"{thousands(size)} parameters, {thousands(workload.train_samples)} training samples,"
        f" {run.sequences} per step, {final_step} steps"
    )

    step, cursor, loss = start.step, start.cursor, math.nan
    saved_at, evaluated_at = start.step, -1
    stopping = False
    began = time.perf_counter()

    with Records(options.run_dir, active=first, first_step=start.step + 1) as records:
        speed = Speed()
        while step < final_step and not stopping:
            # ── One optimizer step: the same samples for any number of ranks ──────────────────────
            step += 1
            lr = learning_rate(
                step,
                final_step,
                highest=options.lr,
                lowest=options.lr / 10 if options.min_lr is None else options.min_lr,
                warmup=options.warmup_steps,
            )
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr
            torch.manual_seed(dropout_seed(options.seed, step, place.rank))
            everyones = stream.take(cursor, run.sequences)
            cursor += run.sequences
            targets = workload.targets("train", everyones)
            mine = share(everyones, place.rank, place.world_size)
            micro_batches = [mine[at : at + options.batch_size] for at in range(0, len(mine), options.batch_size)]

            local_loss = torch.zeros((), device=hardware.device)
            for number, indices in enumerate(micro_batches, start=1):
                batch = tuple(part.to(hardware.device) for part in workload.batch("train", indices))
                with group.gradients(model, sync=number == len(micro_batches)):
                    with hardware.autocast():
                        loss_sum = workload.loss_sum(model, batch)
                    # DDP averages over ranks, and we want the mean over all targets: hence world_size. A mean
                    # of the ranks' means is wrong once one has more targets (pytorch/pytorch#67253).
                    scaler.scale(loss_sum * (place.world_size / targets)).backward()  # type: ignore[no-untyped-call]
                local_loss += loss_sum.detach()

            # One small all-reduce tells all ranks the loss, and if one was asked to stop: all end at once.
            summed, wishes_to_stop = group.sum([local_loss.item(), float(run.stop.asked)])
            loss, stopping = summed / targets, wishes_to_stop > 0
            if not math.isfinite(loss):
                raise TrainerError(f"the loss is {loss} at step {step}: try a smaller --lr (now {lr:.1e}) or --clip")

            if options.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(workload.model.parameters(), options.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

            # ── What people and the orchestrator see of it ────────────────────────────────────────
            speed.count(targets)
            if first and (step % options.log_every == 0 or step in (start.step + 1, final_step)):
                tokens_per_s, epoch = speed.read(), cursor / workload.train_samples
                records.write("train", step, {"loss": loss, "lr": lr, "tokens_per_s": tokens_per_s, "epoch": epoch})
                events.emit("step", step=step, loss=loss, tokens_per_s=tokens_per_s, lr=lr, epoch=epoch)
                events.say(f"step {step}/{final_step}  loss {loss:.3f}  lr {lr:.1e}  {thousands(tokens_per_s)} tok/s")

            go_on = speed.pause()
            if options.eval_every and step % options.eval_every == 0 and not stopping:
                _evaluate(workload, model, options, run, step, records)
                evaluated_at = step
            if options.checkpoint_every and step % options.checkpoint_every == 0:
                _save(trained, workload, options, run, step, cursor)
                saved_at = step
            go_on()

        # ── The end, asked for or reached ─────────────────────────────────────────────────────────
        if step != saved_at:
            _save(trained, workload, options, run, step, cursor)
        if stopping:
            if first:
                stopped_marker.write_text(json.dumps({"step": step, "t": time.time()}) + "\n", "utf-8")
            events.emit("stopped", step=step)
            events.say(f"stopped after step {step}/{final_step}; the same command goes on from there")
            return
        if start.step >= final_step:
            events.say(f"step {start.step} of {final_step} is already reached: nothing to train")
        if options.eval_every and step != evaluated_at:
            _evaluate(workload, model, options, run, step, records)
    if first and options.prompt is not None:
        text = workload.sample(options.prompt)
        events.emit("sample", text=text)
        events.say(f"sample: {text}")
    seconds = time.perf_counter() - began
    events.emit("done", step=step, loss=loss, seconds=seconds)
    events.say(f"done: step {step}" + (f", loss {loss:.3f}, {seconds:.0f} s" if step > start.step else ""))


@torch.no_grad()
def _evaluate(
    workload: Workload, model: nn.Module, options: TrainOptions, run: Run, step: int, records: Records
) -> None:
    """The mean loss on the same validation samples each time, spread over the split and over the ranks."""
    count = min(workload.validation_samples, options.eval_batches * options.batch_size)
    everyones = np.linspace(0, workload.validation_samples - 1, count).astype(np.int64)
    mine = share(everyones, run.place.rank, run.place.world_size)
    # The bare model: ranks may have different numbers of batches, and none must wait for a peer here.
    bare = workload.model
    bare.eval()
    local_loss = torch.zeros((), device=run.hardware.device)
    for at in range(0, len(mine), options.batch_size):
        batch = workload.batch("validation", mine[at : at + options.batch_size])
        with run.hardware.autocast():
            local_loss += workload.loss_sum(bare, tuple(part.to(run.hardware.device) for part in batch))
    bare.train()
    model.train()
    loss = run.group.sum([local_loss.item()])[0] / workload.targets("validation", everyones)
    quality = workload.quality(loss)
    records.write("validation", step, {"loss": loss, **quality})
    if run.place.rank == 0:
        run.events.emit("evaluation", step=step, loss=loss, **quality)
        figures = "  ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in quality.items())
        run.events.say(f"evaluation at step {step}: loss {loss:.3f}  {figures}")


def _save(trained: Trained, workload: Workload, options: TrainOptions, run: Run, step: int, cursor: int) -> None:
    if run.place.rank != 0:
        return
    saved = checkpoint.save(
        options.run_dir / "checkpoints",
        {
            "format": 1,
            "step": step,
            "cursor": cursor,
            "workload": workload.name,
            "identity": dict(workload.identity),
            "options": options.as_json(),
            "run_id": run.place.run_id,
            "attempt": run.place.attempt,
            "torch": torch.__version__,
        },
        lambda path: trained.write(path, step, cursor),
        workload.attachments,
        options.keep_checkpoints,
    )
    run.events.emit("checkpoint", step=step, path=str(saved.path), verified=not saved.problem)
    if saved.problem:
        raise TrainerError(f"{saved.path} was written, but does not read back: {saved.problem}")
    run.events.say(f"checkpoint {saved.path}")


def _optimizer(model: nn.Module, options: TrainOptions, hardware: Hardware) -> torch.optim.Optimizer:
    """AdamW as for GPT-2: matrices decay, biases and norms do not."""
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=hardware.on_gpu)


def _what_must_be_equal(workload: Workload, options: TrainOptions) -> str:
    """Where a node keeps its files is its own matter; all else decides the result."""
    shared = {key: value for key, value in options.as_json().items() if key not in ("data_dir", "run_dir", "resume")}
    samples = (workload.train_samples, workload.validation_samples)
    return json.dumps([shared, dict(workload.identity), samples], sort_keys=True)
