"""Trainings in the rig and their measurements: our trainer, or a peer with the same model and data."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.slow_lan.rates import equivalent
from benchmarks.slow_lan.rig import Event, Outcome, Rig

MODEL = ("--preset=lab",)
"""Model of 0.93 million parameters, with a vocabulary of 4096."""
SEQ_LEN = 64
"""Length of that preset's samples."""

USUAL_EVERY = 20
"""The trainer's default of --sync-every."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One candidate: a sync method, ours or a peer's."""

    name: str
    options: tuple[str, ...] = ()
    """Options of our trainer, or of `peer_rank.py`."""
    peer: bool = False
    every: int = 1
    """Steps between exchanges: a window of measured steps holds a whole number of them."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work that is the same for all candidates."""

    data_dir: Path
    samples: int
    """Samples of a step, over all nodes."""
    micro_batch: int
    steps: int
    skip: int = 2
    """Steps that are not timed: the first ones allocate memory and open connections."""
    options: tuple[str, ...] = ()
    """Options of the trainer besides those of the sync method."""
    seed: int = 1337
    evaluate: bool = False
    """Validate after the last step, on the whole split."""
    timeout_s: float = 300


@dataclass(frozen=True, kw_only=True)
class Trained:
    step_s: float
    tokens_per_s: float
    sent_bytes: float
    """Bytes per step of the busiest node, counted at its interface."""
    loss: float | None
    """Loss on the validation split."""
    seconds: float
    """Time from the first step to the end of the last."""
    forecast_s: float | None = None
    """Time of a step, as forecast by the trainer before it began."""
    chosen: str = ""
    """Method that `auto` selected."""
    nodes: int = 0


def command(way: Way, task: Task, run_dir: Path, rank: int) -> tuple[str, ...]:
    """Command of a candidate: model, data, order and learning rates are the same for all."""
    program = ("-m", "benchmarks.slow_lan.peer_rank") if way.peer else ("-m", "trainer", "gpt2", "train")
    words: tuple[object, ...] = (
        *MODEL, "--data-dir", task.data_dir.resolve(), "--run-dir", run_dir / f"node{rank}",
        "--global-batch-size", task.samples, "--micro-batch-size", task.micro_batch, "--max-steps", task.steps,
        "--seed", task.seed, "--precision", "fp32", "--no-compile", "--num-workers", 0, "--log-every", 1,
        "--checkpoint-every", 0, "--eval-every", task.steps if task.evaluate else 0, "--eval-batches", 1_000_000,
        "--warmup-steps", max(1, task.steps // 20), *task.options, *way.options,
    )  # fmt: skip
    return (sys.executable, *program, *map(str, words))


def train(rig: Rig, way: Way, task: Task, nodes: int) -> Trained:
    """Run on the first `nodes` nodes of the rig; raises RunFailed."""
    with tempfile.TemporaryDirectory(prefix="slow-lan-") as folder:
        commands = [command(way, task, Path(folder), rank) for rank in range(nodes)]
        outcomes = rig.run(commands, timeout_s=task.timeout_s, limit_from="started")
    return read(outcomes, way, task, nodes)


def train_apart(rig: Rig, task: Task, samples: Sequence[int]) -> tuple[Trained, ...]:
    """Run each node alone, all at the same time, with its own `samples` per step, to measure its speed."""
    way = Way(name="alone")
    with tempfile.TemporaryDirectory(prefix="slow-lan-") as folder:
        tasks = [replace(task, samples=count) for count in samples]
        commands = [command(way, one, Path(folder), rank) for rank, one in enumerate(tasks)]
        outcomes = rig.run(commands, timeout_s=task.timeout_s, limit_from="started", apart=True)
    return tuple(read([outcome], way, one, 1) for outcome, one in zip(outcomes, tasks, strict=True))


def read(outcomes: Sequence[Outcome], way: Way, task: Task, nodes: int) -> Trained:
    """`outcomes` by rank: rank 0 reports the forecast, the first rank that is not left out the steps. These are timed
    by their own ends, as a mean over whole rounds of exchanges, from the first that is not skipped: a median would hide
    steps that exchange."""
    outcome = max(outcomes, key=lambda one: len(one.named("step")))
    steps = outcome.named("step")
    window = (len(steps) - 1 - task.skip) // way.every * way.every
    if window < 1:
        raise ValueError(f"{way.name}: {len(steps)} steps are too few to time {way.every} of them after {task.skip}")
    ends = [float(one.fields["ended_at"]) for one in steps]
    first, last = ends[-1 - window], ends[-1]
    step_s = (last - first) / window
    forecast = next((event.fields for event in outcomes[0].named("forecast")), None)
    rows = [row for row in (forecast or {}).get("rows", ()) if row["chosen"]]
    evaluations = outcome.named("evaluation")
    return Trained(
        step_s=step_s,
        tokens_per_s=task.samples * SEQ_LEN / step_s,
        sent_bytes=max(b - a for a, b in zip(_sent(steps, first), _sent(steps, last), strict=True)) / window,
        loss=float(evaluations[-1].fields["loss"]) if evaluations else None,
        seconds=last - ends[0],
        forecast_s=float(rows[0]["step_s"]) if rows else None,
        chosen=str((forecast or {}).get("sync", "")) or _chosen_by_hook(outcomes[0]),
        nodes=nodes,
    )


def _sent(steps: Sequence[Event], ended_at: float) -> tuple[int, ...]:
    """Bytes sent by each node until a step ended: counted at the event nearest to that in time. It is the step's own,
    or that of the step before, which our trainer reports between the exchange and the optimizer's step."""
    return min(steps, key=lambda one: abs(float(one.fields["t"]) - ended_at)).sent


def _chosen_by_hook(outcome: Outcome) -> str:
    """Sync method that `orch_hooks.ddp` selected for `auto`, from its line for people; empty without one."""
    found = (re.search(r"sync auto: (\S+)", line) for line in outcome.out)
    return next((match[1] for match in found if match), "")


def _shorter(task: Task) -> Task:
    """A step in which one node computes everything takes as long as several of theirs."""
    return replace(task, steps=min(task.steps, task.skip + 5), evaluate=False)


# ── Rates scaled to the model ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Time of one node alone, and the link rate that limits this model as a real link limits GPT-2 124M."""

    alone: Trained
    """Training while the other nodes train too, each alone."""
    resting: Trained
    """Training while the other nodes are idle."""
    gradient_bytes: float
    nodes: int
    share_s: float
    """Seconds of computing per step with this number of nodes."""

    def rate(self, named_bits_per_s: float) -> float:
        return equivalent(named_bits_per_s, self.gradient_bytes, self.share_s)


def scale(rig: Rig, task: Task, nodes: int) -> Scale:
    """Measure with one node that computes all samples of a step: the same work as that of all nodes together.

    Measured twice: with the others idle, and as the median of all nodes training at the same time, each alone. Real
    machines share no CPU cache, but nodes of a rig that compute at the same time do (measured: 0 to 8 % slower).
    """
    short = _shorter(task)
    resting = train(rig, Way(name="alone"), short, 1)
    apart = train_apart(rig, short, [task.samples] * nodes)
    alone = sorted(apart, key=lambda one: one.step_s)[(nodes - 1) // 2]
    return Scale(
        alone=alone, resting=resting, gradient_bytes=4.0 * parameters(task.data_dir), nodes=nodes,
        share_s=alone.step_s / nodes,
    )  # fmt: skip


def parameters(data_dir: Path) -> int:
    """Parameters of the lab preset with this data's vocabulary."""
    from trainer.data.manifests import PreparedTokens
    from trainer.models.gpt2 import GPT2, Gpt2Shape
    from trainer.workloads.gpt2 import PRESETS

    lab = PRESETS["lab"]
    shape = Gpt2Shape(
        layers=lab.layers, heads=lab.heads, width=lab.width, seq_len=lab.seq_len,
        vocab_size=PreparedTokens.open(data_dir).vocab_size,
    )  # fmt: skip
    return sum(parameter.numel() for parameter in GPT2(shape).parameters())


def ways(words: Sequence[str]) -> list[Way]:
    """Read sync methods: `fp32`, `int4`, or a name and options: `diloco:--sync-every 10 --sync-codec int4`."""
    found = []
    for word in words:
        name, _, text = word.partition(":")
        options = tuple(shlex.split(text))
        every = USUAL_EVERY if name in ("local", "diloco") else 1
        if "--sync-every" in options:
            every = int(options[options.index("--sync-every") + 1])
        found.append(Way(name=word, options=("--sync", name, *options), every=every))
    return found
