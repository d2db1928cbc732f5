"""Measurement of the last start of a training on the same nodes, used again while it still holds.

It is saved on the disk of rank 0's node, beside torch's compiled kernels, with all that decides speed. The next start
times one micro-batch on each rank and one exchange; where one of these differs by more than `AGREES`, all is measured
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from contract.cost_model.measurement import SPEED_NEUTRAL, SPEED_NEUTRAL_FLAGS, Measurement
from contract.json_reader import from_json
from trainer.config import RankInfo
from trainer.data.files import write_atomic
from trainer.engine.group import Group
from trainer.engine.run import TrainingRun

AGREES = 0.15
"""Share by which a micro-batch and an exchange may differ from the measurement."""
SAMPLE_S, EXCHANGE_S = 0.3, 0.1
"""Seconds, about, of the micro-batches and of the exchange that are timed to compare."""
LEAST, MOST = 1 << 12, 1 << 22
"""Values of that exchange."""
LARGEST_FILE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class LastMeasurement:
    """A measurement, and an exchange that is quick to repeat."""

    measured: Measurement
    exchange_s: float
    """Seconds of an exchange of `values` float32 values between all ranks, when that was measured."""
    values: int
    time: str
    """ISO 8601, of rank 0's clock, for people."""


def load(run: TrainingRun, environ: Mapping[str, str] = os.environ) -> LastMeasurement | None:
    """Return the measurement that rank 0's node has for these conditions, alike on all ranks. To be called by all."""
    text = ""
    conditions = _conditions(run)
    if run.place.rank == 0 and (file := _file(run.place, conditions, environ)):
        with suppress(OSError, ValueError):
            if file.stat().st_size <= LARGEST_FILE:
                text = file.read_text("utf-8")
    text = run.group.broadcast_text(text)
    try:
        last = from_json(LastMeasurement, json.loads(text or "null"))
        last.measured.check()
    except (ValueError, RecursionError):  # nothing, or by a disk that is full, or by another version
        return None
    sound = last.exchange_s > 0 and LEAST <= last.values <= MOST
    return last if sound and len(last.measured.nodes) == run.place.world_size else None


def differs(last: LastMeasurement, run: TrainingRun, sample_s: Callable[[float], float]) -> str:
    """Name what is no longer as it was measured, alike on all ranks; empty: nothing. To be called by all ranks.

    `sample_s`: times micro-batches of this rank for so many seconds, and returns those of a sample.
    """
    group = run.group
    before = [node.sample_s for node in last.measured.nodes]
    now = group.all_gather_scalar(sample_s(SAMPLE_S))
    for node, was, seconds in zip(last.measured.nodes, before, now, strict=True):
        if abs(seconds / was - 1) > AGREES:
            return f"a micro-batch on {node.node} takes {seconds / was:.2f} times as long"
    seconds = exchange_s(group, last.values)
    if abs(seconds / last.exchange_s - 1) > AGREES:
        return f"an exchange takes {seconds / last.exchange_s:.2f} times as long"
    return ""


def save(run: TrainingRun, measured: Measurement, environ: Mapping[str, str] = os.environ) -> None:
    """Save it for the next start. To be called by all ranks."""
    link = min(min(node.upload, node.download) for node in measured.nodes)
    values = int(min(MOST, max(LEAST, EXCHANGE_S * link / 8)))
    seconds, conditions = exchange_s(run.group, values), _conditions(run)
    file = _file(run.place, conditions, environ) if run.place.rank == 0 else None
    if file is None:
        return
    last = LastMeasurement(
        measured=measured, exchange_s=seconds, values=values, time=time.strftime("%Y-%m-%dT%H:%M:%S%z")
    )
    with suppress(OSError):  # it costs a measurement
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(asdict(last)).encode())


def exchange_s(group: Group, values: int) -> float:
    """Seconds of one exchange, the shorter of two, of the rank that waits longest."""
    flat, taken = torch.zeros(values), []
    for _ in range(2):
        group.barrier()
        began = time.perf_counter()
        group.all_reduce(flat)
        taken.append(max(group.all_gather_scalar(time.perf_counter() - began)))
    return max(min(taken), 1e-6)


def _conditions(run: TrainingRun) -> str:
    """Digest of the nodes and of all else that decides speed. To be called by all ranks."""
    hardware, options = run.hardware, run.options.as_json()
    device = hardware.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {hardware.threads} threads"
    own = hashlib.sha256(f"{run.place.label}: {name}".encode()).hexdigest()[:16]
    neutral = SPEED_NEUTRAL | SPEED_NEUTRAL_FLAGS
    about = [
        run.group.all_gather_text(own), run.group.backend, dict(run.workload.identity), run.per_step,
        hardware.precision, torch.__version__,
        {key: value for key, value in options.items() if key == "sync" or f"--{key.replace('_', '-')}" not in neutral},
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _file(place: RankInfo, conditions: str, environ: Mapping[str, str]) -> Path | None:
    """None: for a rank that no launch has started, there is no such folder on its disk."""
    folder = environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(folder) / "measurements" / f"{conditions}.json" if folder and place.run_id else None
