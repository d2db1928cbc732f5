"""What is measured before the first step, on real batches of the run, and leaves no trace in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from trainer.config import TrainOptions
from trainer.engine.buffers import Buffers
from trainer.engine.feed import Cut, Feed
from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware
from trainer.engine.hardware.limits import usable_threads
from trainer.engine.trials import find_lr, micro_batch
from trainer.engine.trials.workers import Choice, Trial, choose_workers, counted
from trainer.engine.workload import Batch, Workload
from trainer.survive import beat

Say = Callable[[str], None]


class Bench:
    """The model, and the batches that it would see from `cursor` on."""

    def __init__(self, workload: Workload, hardware: Hardware, cut: Cut, cursor: int) -> None:
        self._workload, self._hardware, self._cut, self._cursor = workload, hardware, cut, cursor
        self._weights = torch.tensor(list(workload.terms.values()), device=hardware.device)

    def micro_batch(self, options: TrainOptions, say: Say) -> int:
        """Samples in one forward pass: on a GPU as many as fit, on a CPU the fastest number, up to the rank's share."""
        wished = options.micro_batch_size
        if wished != "auto":
            return options.batch_size if wished is None else int(wished)
        share = self._cut.share
        with self._nothing_learnt():
            if self._hardware.on_gpu:
                size = micro_batch.largest_that_fits(self._try, share)
                say(f"micro-batch {size}: the most that fits into this GPU's memory, of {share}")
                return size
            sizes = [size for size in micro_batch.SIZES if size <= share] or [share]
            choice = micro_batch.fastest(self._try, sizes=sizes)
        say(choice.why)
        return choice.size

    def sample_s(self, meet: Callable[[], None], seconds: float) -> float:
        """Seconds that one sample takes, loaded and computed, in micro-batches as they will be.

        `meet`: returns when all ranks are there, for nodes that share something are to do so here too. The mean, not
        the median: a container that has used up its quota stands still for a while, again and again.
        """
        batches = self._batches(self._cut)
        done = 0
        with self._nothing_learnt():
            self._compute(next(batches))  # opens files, allocates, picks kernels: once in a run
            meet()
            began = time.perf_counter()
            while done == 0 or time.perf_counter() - began < seconds:
                batch = next(batches)
                self._compute(batch)
                done += len(batch[0])
            return (time.perf_counter() - began) / done

    def loaded_per_s(self, seconds: float = 0.5) -> float:
        """Samples per second that this process loads when it does nothing else."""
        batches = self._batches(self._cut)
        next(batches)  # opens files
        done, began = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < seconds:
            done += len(next(batches)[0])
        return done / (time.perf_counter() - began)

    def workers(self, options: TrainOptions, group: Group, say: Say) -> int:
        """Processes that load data: as asked for, as the data says, or as measured.

        Streamed data is cut into parts for all workers of all ranks, and so each rank must have as many.
        """
        if options.num_workers != "auto":
            say(f"{counted(options.num_workers)}: as asked for")
            return options.num_workers
        cpus = max(1, usable_threads() // group.place.local_world_size)
        if self._workload.stream_workers is not None:
            usable, fewest = map(int, group.least([self._workload.stream_workers, cpus]))
            chosen = min(usable, fewest)
            say(f"{counted(chosen)}: the data is for up to {usable}, the rank with the fewest CPUs has {fewest}")
            return chosen
        choice = self._measured_workers(cpus)
        chosen = int(group.least([choice.workers])[0]) if self._workload.streamed else choice.workers
        if choice.workers:
            say(choice.why)
        if chosen < choice.workers:
            say(f"{counted(chosen)}: streamed data needs as many on each rank, and one has no use for more")
        return chosen

    def _measured_workers(self, cpus: int) -> Choice:
        batches = self._batches(self._cut)
        trial = Trial(load=lambda _: next(batches), compute=self._compute, loader=self._loader)
        with self._nothing_learnt():
            return choose_workers(trial, cpus=cpus)

    def rehearse(self, model: nn.Module, passes: int) -> None:
        """So many passes through `model`, with their exchange. To be called by all ranks."""
        few = min(2, self._cut.micro_batch)  # which batch norm needs, and hardly any memory
        batch = next(self._batches(replace(self._cut, micro_batch=few))) if passes else None
        for _ in range(passes):
            with self._nothing_learnt():
                self._compute(batch, model)

    def find_lr(self, optimizer: torch.optim.Optimizer, steps: int) -> find_lr.Found:
        """The learning-rate range test. Afterwards the weights are spoilt."""
        batches = self._batches(self._cut)

        def step(lr: float) -> float:
            for group in optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
            optimizer.zero_grad(set_to_none=True)
            loss = self._compute(next(batches))
            optimizer.step()
            return loss

        return find_lr.find_lr(step, steps=steps)

    def _try(self, size: int) -> None:
        self._compute(next(self._batches(replace(self._cut, micro_batch=size))))

    def _compute(self, batch: object, model: nn.Module | None = None) -> float:
        """Forward and backward, without a word to other ranks where nothing is said: by the bare model."""
        beat.part("trial")
        moved: Batch = self._hardware.move(batch)  # type: ignore[arg-type]  # what this very object loaded
        with self._hardware.autocast():
            sums = self._workload.losses(model or self._workload.model, moved)
        loss = (sums * self._weights).sum() / len(moved[0])
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _batches(self, cut: Cut) -> Iterator[Batch]:
        feed = Feed(self._workload, cut, self._cursor, workers=0, pin=False)
        return (next(feed) for _ in itertools.count())

    def _loader(self, count: int) -> Feed:
        return Feed(self._workload, self._cut, self._cursor, workers=count, pin=self._hardware.on_gpu)

    @contextmanager
    def _nothing_learnt(self) -> Iterator[None]:
        """Gradients are dropped, and what batch norm counted is put back."""
        model = self._workload.model
        buffers = Buffers(model)
        model.train()
        yield
        model.zero_grad(set_to_none=True)
        buffers.put_back()
