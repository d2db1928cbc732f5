"""Write a run's checkpoints while it trains: the training pauses only for a copy in memory.

What each rank alone knows lies on its own node, and a checkpoint that is there has all of it: rank 0 gives its folder
the name of a checkpoint only once all ranks have written theirs, which each step's all-reduce tells.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from contract.checkpoint import CheckpointManifest
from contract.events import CheckpointWritten
from trainer import checkpoint_folder
from trainer.agent import heartbeat
from trainer.checkpoint_folder import Keep
from trainer.engine.checkpoints import rank_state
from trainer.engine.checkpoints.resume import TrainState
from trainer.engine.checkpoints.snapshot import Snapshot
from trainer.engine.run import TrainingRun
from trainer.engine.sync.strategy import RankState, State, Sync
from trainer.engine.weights import check_weights_match
from trainer.errors import TrainerError


@dataclass(frozen=True, kw_only=True)
class Save:
    """One checkpoint on its way."""

    step: int
    cursor: int
    best: bool
    aside: bool
    """True if it is written while the training continues; otherwise the training waits for it."""
    began: float
    """Start of the save, in seconds of `time.perf_counter`."""


class Checkpointer:
    """Writer of one checkpoint at a time: the next waits for the last."""

    def __init__(self, run: TrainingRun, trained: TrainState, sync: Sync, saved_step: int = 0) -> None:
        self._run, self._trained, self._sync = run, trained, sync
        self.saved_step = saved_step
        """Step of the last checkpoint that was begun, or that the run has resumed from."""
        self._root = run.options.run_dir / "checkpoints"
        self._first = run.place.rank == 0
        self._memory, self._own_memory = Snapshot(), Snapshot()
        self._own: Future[None] | None = None
        """This rank's file of `_own_step`, while others may not have theirs."""
        self._own_step = 0
        self.notify: Callable[[int, Path], object] = lambda _step, _path: None
        """Called on rank 0 with each checkpoint that was written and verified."""
        self._publish: Callable[[], None] | None = None
        """Function that makes, on rank 0, a checkpoint of the folder that is being written."""

    @property
    def own_written(self) -> bool:
        """True if nothing that this rank alone knows is still to be written."""
        return self._own is None or (self._own.done() and self._own.exception() is None)

    def poll(self, *, all_written: bool) -> None:
        """Look at the write after each step. `all_written`: `own_written` of all ranks. Raises the error of a failed
        write."""
        self._run.writer.poll()
        if all_written:
            self._may_publish()

    def save(self, step: int, cursor: int, *, best: bool = False, last: bool = False) -> None:
        """Save on all ranks. `last`: nothing is trained afterwards, so that no copy is needed."""
        heartbeat.part("checkpoint")
        began = time.perf_counter()
        self.saved_step = step
        check_weights_match(self._sync, self._run.group, step)
        self.wait()
        aside = self._run.options.checkpoint_async and not last
        state = self._sync.state()
        if state:
            self._write_own(step, self._own_memory.take(dict(state)) if aside else state)
        with self._sync.use_averaged():
            if self._first:
                one = Save(step=step, cursor=cursor, best=best, aside=aside, began=began)
                self._write(one)
            if not aside:
                self.wait()

    def finish(self, step: int, cursor: int) -> None:
        """Save the last step unless that is done, and wait until its checkpoint is there. On all ranks."""
        if step != self.saved_step:
            self.save(step, cursor, last=True)
        self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is one. On all ranks; raises what has failed in writing."""
        run = self._run
        run.writer.finish()
        if self._own is not None:
            run.group.barrier()
        self._may_publish()
        run.writer.finish()
        if self._own is not None:
            # Of the same steps as there are checkpoints, whatever has decided which of those stay.
            there = json.loads(run.group.broadcast_text(json.dumps(checkpoint_folder.steps(self._root))))
            until = self._own_step
            run.writer.submit(lambda: rank_state.prune(run.options.run_dir, there, until))
            self._own = None

    def _write_own(self, step: int, state: State) -> None:
        run, layout = self._run, self._sync.layout
        mine = RankState(rank=run.place.rank, world_size=run.place.world_size, state=state)
        self._own_step = step
        self._own = run.writer.submit(lambda: rank_state.save(run.options.run_dir, step, mine, layout))

    def _write(self, one: Save) -> None:
        state = self._trained.state(one.step, one.cursor)
        if one.aside:
            state = self._memory.take(state)
        stopped_s = time.perf_counter() - one.began if one.aside else None
        manifest = self._manifest(one)
        scratch = self._run.writer.submit(
            lambda: checkpoint_folder.write(
                self._root, manifest, lambda file: torch.save(state, file), self._run.workload.attachments
            )
        )
        self._publish = lambda: self._published(scratch.result(), one, stopped_s)
        if self._own is None:
            self._may_publish()

    def _may_publish(self) -> None:
        publish, self._publish = self._publish, None
        if publish:
            self._run.writer.submit(publish)

    def _published(self, scratch: Path, one: Save, stopped_s: float | None) -> None:
        options, events = self._run.options, self._run.events
        saved = checkpoint_folder.publish(scratch)
        seconds = time.perf_counter() - one.began
        stood = seconds if stopped_s is None else stopped_s
        events.emit(
            CheckpointWritten(
                step=one.step,
                path=str(saved.path),
                sha256=saved.sha256,
                verified=not saved.problem,
                stopped_s=round(stood, 4),
                seconds=round(seconds, 4),
            )
        )
        if saved.problem:
            raise TrainerError(f"{saved.path} was written, but does not read back: {saved.problem}")
        self.notify(one.step, saved.path)
        if one.best:
            checkpoint_folder.mark_best(self._root, one.step)
        checkpoint_folder.prune(self._root, one.step, Keep(count=options.keep_checkpoints, hours=options.keep_hours))
        events.say(f"checkpoint {saved.path}" + (" (the best so far)" if one.best else ""))

    def _manifest(self, one: Save) -> CheckpointManifest:
        run = self._run
        return CheckpointManifest(
            step=one.step,
            workload=run.workload.name,
            identity=dict(run.workload.identity),
            run_id=run.place.run_id,
            torch=torch.__version__,
            attempt=run.place.attempt,
            others={
                "format": 1,
                "cursor": one.cursor,
                "options": run.options.as_json(),
                "precision": run.hardware.precision,
            },
        )
