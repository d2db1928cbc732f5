"""Measurements before the first step, on real batches of the run, that leave no trace in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.agent import heartbeat
from trainer.config import TrainOptions
from trainer.data.batch import Batch
from trainer.engine.autotune import micro_batch
from trainer.engine.autotune.workers import Trial, WorkerCount, choose_workers, counted
from trainer.engine.buffers import Buffers
from trainer.engine.dataloader import BatchSplit, MicroBatchLoader
from trainer.engine.group import Group
from trainer.engine.hardware.compiling import uncompiled
from trainer.engine.hardware.device import Hardware
from trainer.engine.optimization.optimizer import standing_still
from trainer.engine.reporting.events import Events
from trainer.engine.sync.strategy import Sync
from trainer.engine.workload import Workload
from trainer.limits import usable_threads
from trainer.out_of_memory import free_memory, is_out_of_memory

T = TypeVar("T")


class Bench:
    """The model, and the batches that it would see from `cursor` on, in the parts of `cut`: where the memory does not
    hold these, it has smaller micro-batches afterwards."""

    def __init__(self, workload: Workload, hardware: Hardware, cut: BatchSplit, events: Events) -> None:
        self.cut, self.cursor = cut, 0
        self.first_pass: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context around passes with whole micro-batches, of which the first may compile."""
        self._workload, self._hardware, self._events = workload, hardware, events
        self._weights = torch.tensor(list(workload.loss_weights.values()), device=hardware.device)

    def choose_micro_batch(self, options: TrainOptions, optimizer: Optimizer, copies: int) -> None:
        """Samples in one forward pass: on a GPU as many as fit, on a CPU the fastest number, up to the rank's share.

        `optimizer`: before its first step. `copies`: of the trained weights that the exchange will take memory for."""
        wished = options.micro_batch_size
        if wished != "auto":
            size = options.batch_size if wished is None else int(wished)
        elif self._hardware.on_gpu:
            with standing_still(self._workload.model, optimizer) as step:
                size = micro_batch.largest_that_fits(lambda size: self._whole_step(size, copies, step), self.cut.share)
            self._events.say(f"micro-batch {size}: the most that fits into this GPU's memory, of {self.cut.share}")
        else:
            sizes = [size for size in micro_batch.SIZES if size <= self.cut.share] or [self.cut.share]
            with self._nothing_learned():
                choice = micro_batch.fastest(self._try, sizes=sizes)
            self._events.say(choice.why)
            size = choice.size
        self.cut = replace(self.cut, micro_batch=size)

    def sample_s(self, meet: Callable[[], None], seconds: float) -> float:
        """Seconds that one sample takes: loaded, copied and computed as in a training by the model as it is now.

        `meet`: returns when all ranks are there, for nodes that share something are to do so here too. The mean, not
        the median: a container that has used up its quota pauses again and again.
        """

        def measure() -> float:
            loader = self._loader(self.cut)
            done, began, loss = 0, time.perf_counter(), torch.zeros(())
            while done == 0 or time.perf_counter() - began < seconds:
                batch, before = next(loader), loss
                loss = self._passes(batch)
                loader.copy_ahead()
                done += self._workload.count_samples(batch)
                float(before)  # while a GPU computes this one
            float(loss)
            return (time.perf_counter() - began) / done

        with self._nothing_learned():
            # Opens files, allocates, picks kernels, compiles: once in a run.
            self._fitting(lambda: self._compute_first(next(self._loader(self.cut))))
            meet()
            return self._fitting(measure)

    def loaded_per_s(self, seconds: float = 0.5) -> float:
        """Samples per second that this process loads when it does nothing else."""
        batches = self._loader(self.cut)
        next(batches)  # opens files
        done, began = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < seconds:
            done += self._workload.count_samples(next(batches))
        return done / (time.perf_counter() - began)

    def workers(self, options: TrainOptions, group: Group) -> int:
        """Processes that load data: as asked for, as the data says, or as measured.

        Streamed data is cut into parts for all workers of all ranks, and so each rank must have as many.
        """
        say = self._events.say
        if options.num_workers != "auto":
            say(f"{counted(options.num_workers)}: as asked for")
            return options.num_workers
        cpus = max(1, usable_threads() // group.place.local_world_size)
        if self._workload.stream_workers is not None:
            usable, fewest = map(int, group.all_reduce_min([self._workload.stream_workers, cpus]))
            chosen = min(usable, fewest)
            say(f"{counted(chosen)}: the data is for up to {usable}, the rank with the fewest CPUs has {fewest}")
            return chosen
        choice = self._measured_workers(cpus)
        chosen = int(group.all_reduce_min([choice.workers])[0]) if self._workload.streamed else choice.workers
        if choice.workers:
            say(choice.why)
        if chosen < choice.workers:
            say(f"{counted(chosen)}: streamed data needs as many on each rank, and one has no use for more")
        return chosen

    def _measured_workers(self, cpus: int) -> WorkerCount:
        def measure() -> WorkerCount:
            batches = self._loader(self.cut)
            trial = Trial(
                load=lambda _: next(batches),
                compute=self._compute_first,
                loader=lambda workers: self._loader(self.cut, workers),
            )
            return choose_workers(trial, cpus=cpus)

        with self._nothing_learned():
            return self._fitting(measure)

    def warm_up(self, sync: Sync) -> None:
        """The first passes of `sync`, with their exchange. To be called by all ranks."""
        batch = self._few() if sync.warm_up_exchanges else None
        for _ in range(sync.warm_up_exchanges):
            with self._nothing_learned(), uncompiled(self._workload.model):
                with sync.gradients(last=True):
                    self._compute(batch, sync.model)
                sync.finish()

    def unused(self) -> list[str]:
        """Weights that have no gradient after a pass. By the bare model: a rank without the memory for it keeps no
        other waiting."""

        def find() -> list[str]:
            with self._nothing_learned(), uncompiled(self._workload.model):
                self._compute(self._few())
                named = self._workload.model.named_parameters()
                return [name for name, one in named if one.requires_grad and one.grad is None]

        unused = self._fitting(find)
        if unused:
            named = ", ".join(unused[:3]) + ", …" * (len(unused) > 3)
            self._events.say(
                f"no part in the loss: {named} ({len(unused)} of the tensors); with several ranks their gradient"
                " counts as zero, and what is sent with it waits for the end of the backward pass"
            )
        return unused

    def _few(self) -> Batch:
        """Samples that batch norm can do with, and that need hardly any memory. For a model that runs uncompiled: it
        would be compiled for their number too."""
        return next(self._loader(replace(self.cut, micro_batch=min(2, self.cut.micro_batch))))

    def _try(self, size: int) -> None:
        self._compute(next(self._loader(replace(self.cut, micro_batch=size))))

    def _whole_step(self, size: int, copies: int, step: Callable[[], None]) -> None:
        """All that a real step holds at a time: the gradients of earlier micro-batches during a pass, what the exchange
        takes, and from the second trial on what the optimizer does."""
        cut = replace(self.cut, micro_batch=size)
        trained = [one for one in self._workload.model.parameters() if one.requires_grad]
        with self._nothing_learned():
            batch = next(self._loader(cut))
            held = [torch.empty_like(one, dtype=torch.float32) for one in trained for _ in range(copies)]
            for _ in range(min(2, cut.micro_batches)):
                self._compute(batch)
            step()
            held.clear()

    def _fitting(self, work: Callable[[], T]) -> T:
        """Halve the micro-batches until `work` fits in memory; return its result. It asks nothing of other ranks."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Only here: inside `except` the error's frames still hold the tensors.
            self._workload.model.zero_grad(set_to_none=True)
            free_memory()
            tried = min(self.cut.micro_batch, self.cut.share)
            self.cut = replace(self.cut, micro_batch=micro_batch.halve(tried))
            self._events.warn(
                f"out of memory with micro-batches of {tried} before the first step:"
                f" continuing with {self.cut.micro_batch}"
            )

    def _compute_first(self, batch: object) -> float:
        with self.first_pass():
            return self._compute(batch)

    def _compute(self, batch: object, model: nn.Module | None = None) -> float:
        """Loss of the passes, once they are computed."""
        return float(self._passes(batch, model))

    def _passes(self, batch: object, model: nn.Module | None = None) -> Tensor:
        """Queue forward and backward passes of the bare model, without communication with other ranks."""
        heartbeat.part("trial")
        loaded: Batch = batch  # type: ignore[assignment]  # what this very object loaded
        with self._hardware.autocast():
            sums = self._workload.loss_sums(model or self._workload.model, loaded)
        loss = (sums * self._weights).sum() / self._workload.count_samples(loaded)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own gap
        return loss.detach()

    def _loader(self, cut: BatchSplit, workers: int = 0) -> MicroBatchLoader:
        return MicroBatchLoader(self._workload, cut, self.cursor, workers=workers, device=self._hardware.device)

    @contextmanager
    def _nothing_learned(self) -> Iterator[None]:
        """Gradients are dropped, and what batch norm counted is put back."""
        model = self._workload.model
        buffers = Buffers(model)
        model.train()
        try:
            yield
        finally:
            model.zero_grad(set_to_none=True)
            buffers.put_back()
