"""`--compile`: when a run compiles its model, and whether it keeps to it. One decision for all ranks.

`auto` compiles on GPUs, where the rest of the run is long beside the time that compiling takes; then it measures steps
again and goes back if they are not faster. On a CPU nothing is compiled unless that is asked for (docs/adr/0054). The
kernels and the measured figures are kept on the node's disk: a run that starts again compiles at once, from there, and
so does one with `--compile`: before anything is measured, so that the forecast, the shares and the trial of data
loading see the program that will run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from contract.cost_model.units import duration
from trainer.agent import heartbeat
from trainer.data.files import write_atomic
from trainer.engine.hardware import compiling
from trainer.engine.reporting.remaining_time import FIRST_STEPS
from trainer.engine.run import TrainingRun

TICK_S, SAY_EVERY_S = 3.0, 10.0
PATIENCE_S = 1800.0
"""Time for which compiling counts as progress; afterwards the hang detector may act."""
LEAST_GAIN = 0.01
"""Compiled steps that gain less are not worth the compilations that other batch sizes cost later."""
LONG = 20
"""Multiple of the time of compiling that a run has to last: then a trial that gains nothing costs 5 % of it."""
FILE_NAME = "compile.json"
MAX_RECORDS = 50


@dataclass(frozen=True, kw_only=True)
class CompileTime:
    """Figures of one model on this machine."""

    seconds: float
    """Time of the first compiled step beyond that of a usual one."""
    warm: bool
    """True if its kernels were in the cache then."""
    gain: float | None = None
    """Speed-up of compiled steps; None: the run ended before that was known."""


class CompileTimes:
    """Figures of earlier runs on this machine, next to the kernels in torch's cache. Hints for speed alone: a file that
    cannot be read costs a measurement."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / FILE_NAME if folder else None

    def get(self, key: str) -> CompileTime | None:
        with suppress(KeyError, TypeError, ValueError):
            record = self._all()[key]
            gain = None if record["gain"] is None else float(record["gain"])
            return CompileTime(seconds=max(0.0, float(record["seconds"])), warm=bool(record["warm"]), gain=gain)
        return None

    def put(self, key: str, measured: CompileTime) -> None:
        if self._file is None:
            return
        others = {name: value for name, value in self._all().items() if name != key}
        records = dict(list({**others, key: asdict(measured)}.items())[-MAX_RECORDS:])
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._file, json.dumps(records, indent=1).encode())

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text()) if self._file else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class Compiler:
    """Compiles a run's model before a step, and compares the steps after it. All ranks call it alike."""

    def __init__(self, run: TrainingRun, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._model = run, run.workload.model
        self.gain = 0.0
        """Speed-up of steps since the model was compiled, if that was after the forecast was made."""
        self._expect_slow_step = self._speed_changed = _nothing
        folder = environ.get("TORCHINDUCTOR_CACHE_DIR")
        self._times = CompileTimes(Path(folder) if folder else None)
        self._key = _key(run)
        self._known: CompileTime | None = None
        self._steps = self._compiled_at = 0
        self._eager_s = 0.0
        self._watch: _Watch | None = None
        options = run.options
        self._automatic = options.compile == "auto" and run.hardware.on_gpu and not options.deterministic
        self._settled = not self._automatic and options.compile is not True
        self._pending = False
        """True if the next pass is the first one since the model was compiled, and will take long."""

    def start(self) -> None:
        """Compile if that is asked for, or if it has paid on all ranks' machines before. To be called by all ranks,
        before they measure anything that depends on the model's speed."""
        if self._settled:
            return
        self._known = self._times.get(self._key)
        paid = self._known is not None and (self._known.gain or 0.0) >= LEAST_GAIN
        if self._automatic and min(self._run.group.all_gather_scalar(float(paid))) == 0.0:
            return
        self._compile("as before" if self._automatic else "")

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Context around any pass with batches as those of the training: the first one of a compiled model is noted."""
        if not self._pending:
            yield
            return
        began, self._watch = time.perf_counter(), _Watch(self._run.events.say)
        try:
            yield
        finally:  # out of memory, perhaps: then the next pass is the first one
            self._watch.stop()
            self._watch = None
        self._compiled(time.perf_counter() - began, "its first pass")

    @contextmanager
    def steps(
        self, run: TrainingRun, expect_slow_step: Callable[[], None], speed_changed: Callable[[], None]
    ) -> Iterator[Compiler]:
        """Context around the steps of `run`, of those ranks that train. `speed_changed`: called when steps have become
        faster or slower."""
        self._run, self._expect_slow_step, self._speed_changed = run, expect_slow_step, speed_changed
        if self._pending:
            self._begin_slow_step()
        try:
            yield self
        finally:
            if self._watch:
                self._watch.stop()

    @property
    def is_compiled(self) -> bool:
        return compiling.is_compiled(self._model)

    @property
    def measures(self) -> bool:
        """True if `step_done` needs the time of the step that ends now: the same on all ranks."""
        if self._watch or self._settled:
            return self._watch is not None
        return self._steps + 1 == (self._compiled_at + 1 if self._compiled_at else 0) + FIRST_STEPS

    def step_done(self, last_s: float, usual_s: float, steps_left: int) -> None:
        """Note the end of a step, of so many seconds. `usual_s`: the median of the last few."""
        self._steps += 1
        if self._watch:
            self._watch.stop()
            self._watch = None
            self._compiled(last_s, "the step")
            self._speed_changed()
        elif self._settled:
            return
        elif not self._compiled_at and self._steps == FIRST_STEPS:
            self._compile_if_long(usual_s, steps_left)
        elif self._compiled_at and self._steps == self._compiled_at + 1 + FIRST_STEPS:
            self._compare(usual_s)

    def _compile_if_long(self, step_s: float, steps_left: int) -> None:
        """Compile where the rest of the run is long beside the time that compiling takes."""
        # The slowest rank decides: the others wait for it in each step.
        gather, known = self._run.group.all_gather_scalar, self._known
        self._eager_s = max(gather(step_s))
        left_s = self._eager_s * steps_left
        cost_s = max(gather(self._cost_s()))
        unpaid = known is not None and known.gain is not None and known.gain < LEAST_GAIN
        self._settled = True
        if any(gather(float(unpaid))) or left_s < LONG * cost_s:
            return
        self._compile(f"{duration(cost_s)} of the {duration(left_s)} that are left")
        if self._pending:
            self._settled, self._compiled_at = False, self._steps
            self._begin_slow_step()

    def _cost_s(self) -> float:
        """Seconds that compiling takes on this rank."""
        if self._known:
            return self._known.seconds * (1.0 if self._known.warm else compiling.WARM)
        return compiling.usual_cost_s(self._model)

    def _compile(self, why: str) -> None:
        run, self._settled = self._run, True
        missing = compiling.missing_requirement(run.hardware.device)
        if any(run.group.all_gather_scalar(float(bool(missing)))):
            if missing:
                run.events.warn(f"not compiled: {missing}")
            return
        compiling.compile_in_place(self._model, run.hardware.device, cuda_graphs=run.options.cuda_graphs)
        run.events.say(f"compiling in the next {'step' if self._steps else 'pass'}{why and ': '}{why}")
        self._pending = True

    def _begin_slow_step(self) -> None:
        self._watch = _Watch(self._run.events.say)
        self._expect_slow_step()

    def _compiled(self, seconds: float, what: str) -> None:
        """Note the end of the first compiled pass or step."""
        self._pending = False
        self._run.events.say(f"compiled: {what} took {duration(seconds)}")
        took, known = max(0.0, seconds - self._eager_s), self._known
        self._known = CompileTime(seconds=took, warm=known is not None, gain=known.gain if known else None)
        self._keep()

    def _compare(self, compiled_s: float) -> None:
        """Keep to what is faster, and note it for the next run of this model here."""
        self._settled = True
        compiled_s = max(self._run.group.all_gather_scalar(compiled_s))
        gain = self._eager_s / compiled_s - 1
        if self._known:
            self._known = CompileTime(seconds=self._known.seconds, warm=self._known.warm, gain=gain)
            self._keep()
        text = f"compiled steps take {_seconds(compiled_s)}, before {_seconds(self._eager_s)}"
        self.gain = gain
        if gain < LEAST_GAIN:
            compiling.undo(self._model)
            self.gain = 0.0
            text += ": back to steps that are not compiled"
        self._run.events.say(text)
        self._speed_changed()

    def _keep(self) -> None:
        if self._known and self._run.place.local_rank == 0:
            self._times.put(self._key, self._known)


class _Watch:
    """Says that the rank compiles, to people and to the hang detector: no step ends meanwhile."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock, self._over = say, clock, Event()
        Thread(target=self._watch, daemon=True, name="compiling").start()

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        began = reported = self._clock()
        while not self._over.wait(TICK_S) and (now := self._clock()) - began < PATIENCE_S:
            heartbeat.part("compiling")
            if now - reported >= SAY_EVERY_S:
                reported = now
                self._say(f"compiling for {duration(now - began)}")


def _nothing() -> None:
    pass


def _key(run: TrainingRun) -> str:
    """Digest of all that decides kernels and times: model, batch, precision, device and torch."""
    device = run.hardware.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    about = [dict(run.workload.identity), run.options.batch_size, run.options.micro_batch_size]
    text = json.dumps([*about, run.hardware.precision, name, torch.__version__], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)
