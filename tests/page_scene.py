"""A fleet for the page, in memory: machines that report what they use, a run that trains on them, and recorded runs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event
from typing import Any

from contract.event_lines import encode_event
from contract.events import (
    CheckpointWritten,
    Evaluated,
    Finished,
    GenerationStarted,
    GroupJoined,
    OptionsChosen,
    OutputProgress,
    RankStarted,
    ResourcesSampled,
    StepDone,
    TrainingDone,
)
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import RunLine, Tick
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import Fact, JournalRead, LineRead, NodeAnswered, NodeUnanswered, RunFound, RunSeen
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import ClaimEntry, StartedEntry
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.live import LiveState
from orchestrator.watch.server.actions import PageActions
from orchestrator.watch.server.app import WebParts
from orchestrator.watch.server.fleet import WatchedFleet
from orchestrator.watch.server.live import LiveStream
from orchestrator.watch.server.runs import RunCurves, RunList
from orchestrator.watch.terminal.feed import LiveFeed
from tests import lan

RUN = "gpt2-c0de"


def moment(seconds: float) -> str:
    """A log line's time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def loss_at(step: int, seed: int) -> float:
    """A curve like those of language models, with its noise."""
    noise = random.Random(step * 31 + seed).gauss(0, 0.04)  # noqa: S311  # a figure for a picture
    return 3.1 + 7.2 * math.exp(-step / 180) + 1.1 * math.exp(-step / 2500) + 0.06 * (seed % 5) + noise


def step_event(step: int, seed: int = 0, *, final: int = 1000, node: str = "alpha") -> StepDone:
    others = {"lr": 6e-4 * min(1.0, step / 100) * (1 - 0.9 * step / final), "grad_norm": 0.8 + 3 * math.exp(-step / 90),
              "waiting": 0.02, "exchanging": 0.18}  # fmt: skip
    return StepDone(
        rank=0, node=node, step=step, loss=loss_at(step, seed), per_s=9500.0 + 300 * math.sin(step / 7 + seed),
        unit="tokens", of_forecast=1.04, final_step=final, remaining_s=0.42 * (final - step),
        compute_s={"alpha": 0.051, "beta": 0.048, "gamma": 0.05, "delta": 0.047, "epsilon": 0.049}, others=others,
    )  # fmt: skip


def output_event(step: int, seed: int = 0, *, final: int = 1000, node: str = "alpha") -> OutputProgress:
    """The same progress, read from the output of a script that reports nothing."""
    return OutputProgress(
        rank=0, node=node, epoch=1 + step // 100, epochs=final // 100, step=step % 100, steps=100,
        loss=loss_at(step, seed), per_s=2.4, unit="it", remaining_s=0.42 * (final - step),
    )  # fmt: skip


def usage(number: int, at: float, *, gpus: bool = True) -> ResourceUsage:
    """Resources in use on the machine of this number at this time."""
    wave = math.sin(at / 9 + number)
    card = GpuUsage(
        index=0, name="NVIDIA GeForce RTX 3050", utilization_percent=round(88 + 7 * wave),
        memory_used_mib=5100 + number * 90, memory_total_mib=8192, temperature_c=round(66 + 4 * wave),
        power_w=112.0 + 9 * wave, clock_mhz=1740,
    )  # fmt: skip
    return ResourceUsage(
        cpu_percent=24 + 9 * wave + 4 * number, cpus=8, ram_used_mib=5200 + 300 * number, ram_limit_mib=16000,
        disk_free_mib=90000, disk_read_mib_s=0.4, disk_write_mib_s=1.1, network_in_mib_s=9.4 + wave,
        network_out_mib_s=9.6 + wave, gpus=(card,) if gpus and number < 3 else (),
    )  # fmt: skip


def record_run(
    run_id: str,
    names: Sequence[str],
    *,
    points: int,
    seed: int = 0,
    began: float | None = None,
    outcome: tuple[str, str] | None = ("succeeded", ""),
    tail: Sequence[str] = (),
    plain: bool = False,
) -> RunRecord:
    """A recorded run with a step event for each point, evaluations, checkpoints, resources and log lines. `tail`: last
    lines of the second node; `plain`: of a script that reports nothing, whose progress is read from its output."""
    final = points if outcome else 1000
    zero = time.time() - points * 0.42 - 60 if began is None else began
    record, plan = RunRecord(run_id), lan.plan(names, identity=RunIdentity(
        run_id=run_id, user="ana", started_at=moment(zero).replace("Z", "+00:00")))  # fmt: skip
    record.save_plan(plan)
    every = max(1, points // 12)
    with record.open_log(names[0], "c0") as log:

        def say(at: float, text: str, rank: int | None = 0) -> None:
            log.add(RunLine(time=moment(at), node=names[0], node_rank=0, rank=rank, text=text))

        say(zero + 2, encode_event(GenerationStarted(node=names[0], generation=1)), None)
        say(zero + 3, encode_event(RankStarted(node=names[0], device="cuda", torch="2.13.0", precision="bf16")))
        say(zero + 5, encode_event(GroupJoined(rank=0, world_size=len(names), backend="nccl")))
        rows = (("model", "gpt2-small", "command line"), ("lr", "0.0006", "command line"), ("sync", "int4", "auto"),
                ("micro_batch_size", "16", "measured"))  # fmt: skip
        say(zero + 6, encode_event(OptionsChosen(rank=0, options=rows)))
        for step in range(1, points + 1):
            at = zero + 10 + 0.42 * step
            say(at, encode_event((output_event if plain else step_event)(step, seed, final=final, node=names[0])))
            if step % 10 == 0:
                say(at + 0.01, f"step {step}/{final}  loss {loss_at(step, seed):.3f}  lr 6.0e-04  9,512 tokens/s")
            if step % every == 0 and not plain:
                checked = loss_at(step, seed) + 0.12
                say(at + 0.02, encode_event(Evaluated(rank=0, node=names[0], step=step, loss=checked)))
                say(
                    at + 0.03,
                    encode_event(CheckpointWritten(rank=0, node=names[0], step=step, verified=True, seconds=1.3)),
                )
        end = zero + 11 + 0.42 * points
        if outcome and outcome[0] == "done":
            say(end, encode_event(TrainingDone(rank=0, node=names[0], step=points, seconds=end - zero)))
            say(end + 0.1, encode_event(Finished(node=names[0], outcome="done")), None)
    for number, name in enumerate(names):
        with record.open_log(name, f"c{number}") as log:
            samples = min(300, max(2, int(points * 0.42 / 10)))
            for n in range(samples):
                at = zero + 10 + n * 0.42 * points / samples
                event = ResourcesSampled(node=name, usage=usage(number, at))
                log.add(RunLine(time=moment(at), node=name, node_rank=number, rank=None, text=encode_event(event)))
    with record.open_log(names[1], "c1") as log:
        for n, text in enumerate(tail):
            log.add(RunLine(time=moment(end + n / 100), node=names[1], node_rank=1, rank=1, text=text))
    if outcome:
        record.save_outcome(*outcome)
    return record


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/workspace/code/train.py", line 41, in <module>',
    "    loss.backward()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 8.00 GiB",
)


@dataclass
class PlayedWatch:
    """A watch whose facts are made up: nodes that report what they use, and a run whose steps come."""

    names: tuple[str, ...]
    run_id: str = RUN
    step: int = 400
    final: int = 1000
    pause_s: float = 0.5
    silent: set[str] = field(default_factory=set)
    """Names of nodes that do not answer from now on."""
    plain: bool = False
    """True if the run reports nothing itself: its progress is read from its output."""
    extra: list[Fact] = field(default_factory=list)
    """Facts to come before the next ones."""
    closed: Event = field(default_factory=Event)

    def facts(self) -> Iterator[Fact | RunFound | Tick]:
        now = time.time()
        yield self.found(now)
        while not self.closed.is_set():
            now = time.time()
            while self.extra:
                yield self.extra.pop(0)
            for number, name in enumerate(self.names):
                if name in self.silent:
                    yield NodeUnanswered(seen=seen_now(), node=name, error="no answer in 5 s")
                else:
                    yield NodeAnswered(seen=seen_now(), node=name, usage=usage(number, now))
            if self.run_id and self.step < self.final:
                self.step += 1
                yield self.line(now, encode_event(self.progress(self.step)))
                yield self.line(now + 1e-3, self.printed(self.step))
            yield Tick()
            self.closed.wait(self.pause_s)

    def found(self, now: float) -> RunFound:
        if not self.run_id:
            return RunFound()
        members = tuple(
            Member(node=name, node_rank=number, state=State.RUNNING, container=ContainerFacts(
                id=f"c{number}", name=name, image="i", labels={}, status="running"))
            for number, name in enumerate(self.names)
        )  # fmt: skip
        run = Run(
            run_id=self.run_id, project="orch", attempt=1, user="ana", nnodes=len(self.names), master=self.names[0],
            started_at=moment(now - 180), members=members,
            command="gpt2 --model gpt2-small --data tokens/ --max-steps 1000 --sync auto --lr 6e-4",
        )  # fmt: skip
        lines = [
            self.line(now - 0.42 * (self.step - step), encode_event(self.progress(step)))
            for step in range(max(1, self.step - 200), self.step)
        ]
        lines += [self.line(now - 0.3 + n / 100, self.printed(self.step - 20 + n)) for n in range(20)]
        state = RunState(run_id=self.run_id)
        entries = (ClaimEntry(attempt=1, id="c", nodes=self.names), StartedEntry(attempt=1))
        recorded = JournalRead(seen=seen_now(), journal=fold(entries))
        for fact in (recorded, RunSeen(seen=seen_now(), run=run), *lines):
            apply(state, fact)
        return RunFound(state=state)

    def progress(self, step: int) -> StepDone | OutputProgress:
        return (output_event if self.plain else step_event)(step, final=self.final)

    def printed(self, step: int) -> str:
        words = f"epoch {1 + step // 100} [{step % 100}/100]" if self.plain else f"step {step}/{self.final}"
        return f"{words}  loss {loss_at(step, 0):.3f}"

    def line(self, at: float, text: str, name: str = "", rank: int | None = 0) -> LineRead:
        node = name or self.names[0]
        line = RunLine(time=moment(at), node=node, node_rank=self.names.index(node), rank=rank, text=text)
        return LineRead(seen=seen_now(), line=line)

    def close(self) -> None:
        self.closed.set()


@dataclass
class PlayedFleet(WatchedFleet):
    """The fleet of a played watch: no node is asked."""

    watch: PlayedWatch

    def __post_init__(self) -> None:
        super().__init__([lan.spec(name) for name in self.watch.names], "orch", None)

    @contextmanager
    def watching(self) -> Iterator[Any]:
        yield self.watch


def played_parts(watch: PlayedWatch, perform: Any = None, *, interval_s: float = 2.0) -> WebParts:
    """Parts of the page for this watch. `perform`: stands for the commands that the page starts."""
    fleet = PlayedFleet(watch)
    feed = LiveFeed(fleet.watching, LiveState(watch.names))
    actions = PageActions(perform or (lambda _words, _hear: (0, "")))
    return WebParts(
        fleet=fleet, feed=feed, stream=LiveStream(feed, actions.data, interval_s=interval_s), actions=actions,
        curves=RunCurves(), list=RunList(), project="orch",
    )  # fmt: skip
