"""The training loop: the same for one process and for many, and for every workload. Read it top to bottom."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer.config import Place, TrainOptions
from trainer.engine import checkpoint
from trainer.engine.device import Hardware, prepare_hardware, start_line
from trainer.engine.evaluate import evaluate
from trainer.engine.events import Events
from trainer.engine.feed import Cut, Feed
from trainer.engine.metrics import Records, Speed, figures_text, thousands
from trainer.engine.process_group import Group, expected_backend, join, leave
from trainer.engine.resume import Trained, resume
from trainer.engine.schedule import dropout_seed, last_step, learning_rate, steps_of
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
    per_step = options.batches(place.world_size)
    torch.manual_seed(options.seed)
    workload = build()
    workload.model.to(hardware.device)

    with join(place, hardware.device, options.backend) as group, StopSignal() as stop:
        events.emit("joined", world_size=place.world_size, backend=group.backend)
        events.say(start_line(hardware, place, group.backend))
        group.must_agree("data or options", _what_must_be_equal(workload, options))
        run = Run(place=place, hardware=hardware, group=group, events=events, stop=stop, per_step=per_step)
        _loop(workload, options, run)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What stays the same from the first step to the last."""

    place: Place
    hardware: Hardware
    group: Group
    events: Events
    stop: StopSignal
    per_step: int
    """Samples in one optimizer step, over all ranks."""


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
    if hardware.on_gpu if options.compile == "auto" else options.compile:
        workload.model.compile()

    # ── How much there is to do, and in which parts ───────────────────────────────────────────────
    final_step = last_step(options, (start.step, start.cursor), run.per_step, workload.train_samples)
    eval_every = steps_of(options.eval_every, workload.train_samples, run.per_step)
    checkpoint_every = steps_of(options.checkpoint_every, workload.train_samples, run.per_step)
    chosen = options.micro_batch_size
    micro_batch = chosen if isinstance(chosen, int) else options.batch_size
    cut = Cut(place=place, seed=options.seed, per_step=run.per_step, micro_batch=micro_batch)
    workers = 0 if options.num_workers == "auto" else options.num_workers
    # torch 2.13 fails with an internal assertion where a static graph's first backward pass is one without sync.
    static_graph = options.static_graph and chosen is None and run.per_step <= place.world_size * micro_batch
    model = group.wrap(workload.model, static_graph=static_graph)
    model.train()
    feed = Feed(workload, cut, start.cursor, workers=workers, pin=hardware.on_gpu)
    order = workload.order(options.seed)
    weights = torch.tensor(list(workload.terms.values()), device=hardware.device)
    size = sum(parameter.numel() for parameter in workload.model.parameters())
    events.say(
        f"{thousands(size)} parameters, {thousands(workload.train_samples)} training samples,"
        f" {run.per_step} per step, {final_step} steps"
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
            lr = learning_rate(step, final_step, options)
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr * parameters.get("lr_scale", 1.0)
            torch.manual_seed(dropout_seed(options.seed, step, place.rank))
            everyones = order.take(cursor, run.per_step)
            cursor += run.per_step
            targets = workload.targets("train", everyones)
            # The mean over all targets of the step, for each term. DDP averages over ranks, hence world_size: a mean
            # of the ranks' means is wrong once one has more targets (pytorch/pytorch#67253).
            scale = weights * place.world_size / torch.tensor(targets, device=hardware.device).clamp_min(1e-12)

            local_sums = torch.zeros(len(targets), device=hardware.device)
            for number in range(1, cut.micro_batches + 1):
                batch = hardware.move(next(feed))
                with group.gradients(model, sync=number == cut.micro_batches):
                    with hardware.autocast():
                        sums = workload.losses(model, batch)
                    scaler.scale((sums * scale).sum()).backward()  # type: ignore[no-untyped-call]
                local_sums += sums.detach()

            # One small all-reduce tells all ranks the loss, and if one was asked to stop: all end at once.
            *summed, wishes_to_stop = group.sum([*local_sums.tolist(), float(run.stop.asked)])
            losses = {
                name: total / (count or 1.0) for name, total, count in zip(workload.terms, summed, targets, strict=True)
            }
            loss = sum(workload.terms[name] * value for name, value in losses.items())
            stopping = wishes_to_stop > 0
            if not math.isfinite(loss):
                raise TrainerError(f"the loss is {loss} at step {step}: try a smaller --lr (now {lr:.1e}) or --clip")

            norm = torch.zeros(())
            if options.clip:
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(workload.model.parameters(), options.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

            # ── What people and the orchestrator see of it ────────────────────────────────────────
            speed.count(workload.units(everyones))
            if first and (step % options.log_every == 0 or step in (start.step + 1, final_step)):
                per_s, waiting = speed.read(feed.waited)
                told = {"loss": loss, "lr": lr, "per_s": per_s, "epoch": cursor / workload.train_samples}
                told |= {"waiting": waiting, "grad_norm": float(norm)}
                records.write("train", step, told | (losses if len(losses) > 1 else {}))
                events.emit("step", step=step, unit=workload.unit, **told)
                events.say(
                    f"step {step}/{final_step}  loss {loss:.3f}  lr {lr:.1e}  {thousands(per_s)} {workload.unit}/s"
                    + (f"  {waiting:.0%} waiting for data" if waiting >= 0.05 else "")
                )

            go_on = speed.pause()
            if eval_every and step % eval_every == 0 and not stopping:
                _evaluate(workload, options, run, step, records)
                evaluated_at = step
            if checkpoint_every and step % checkpoint_every == 0:
                _save(trained, workload, options, run, step, cursor)
                saved_at = step
            go_on()
        feed.close()

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
        if eval_every and step != evaluated_at:
            _evaluate(workload, options, run, step, records)
    if first and options.prompt is not None:
        text = workload.sample(options.prompt)
        events.emit("sample", text=text)
        events.say(f"sample: {text}")
    seconds = time.perf_counter() - began
    events.emit("done", step=step, loss=loss, seconds=seconds)
    events.say(f"done: step {step}" + (f", loss {loss:.3f}, {seconds:.0f} s" if step > start.step else ""))


def _evaluate(workload: Workload, options: TrainOptions, run: Run, step: int, records: Records) -> None:
    found = evaluate(workload, options, options.batch_size, run.hardware, run.group)
    records.write("validation", step, found.figures)
    if run.place.rank == 0:
        run.events.emit("evaluation", step=step, **found.figures)
        run.events.say(f"evaluation at step {step}: {figures_text(found.figures)}")


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
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=hardware.on_gpu)


def _what_must_be_equal(workload: Workload, options: TrainOptions) -> str:
    """Where a node keeps its files is its own matter; all else decides the result."""
    shared = {key: value for key, value in options.as_json().items() if key not in ("data_dir", "run_dir", "resume")}
    samples = (workload.train_samples, workload.validation_samples)
    return json.dumps([shared, dict(workload.identity), samples], sort_keys=True)
