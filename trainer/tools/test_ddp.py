"""Test that all ranks reach each other and that every collective gives the right values; then measure the links.

Start it under torchrun, or on each machine with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK set.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from contract.events import ConnectivityTested, GroupJoined, RankFailed, RankStarted, TrainingDone
from trainer.config import RankInfo, TrainOptions
from trainer.engine.group import Group
from trainer.engine.hardware.device import prepare_hardware
from trainer.engine.process_group import expected_backend, join, leave
from trainer.engine.reporting.events import Events
from trainer.errors import TrainerError
from trainer.tools.link_rates import measure_all_reduce, measure_links

LENGTH = 1000
"""Values of a message: more than one packet holds."""


def run(given: argparse.Namespace, place: RankInfo) -> int:
    """Return exit code 0, or 1 where a value was wrong or the other ranks stopped answering."""
    code, events = 0, Events(place)
    try:
        record(_test)(place, place.backend if given.backend == "auto" else given.backend, events)
    except TrainerError as error:
        events.failed(error)
        code = error.exit_code
    except RuntimeError as error:
        message = f"the other ranks stopped answering: {error}"
        events.emit(RankFailed(error=type(error).__name__, message=message, frame=""))
        print(f"{place.name}: {message}", file=sys.stderr)
        code = 1
    return leave(place, code)


def _test(place: RankInfo, backend: str, events: Events) -> None:
    hardware = prepare_hardware(place, TrainOptions(amp=False))
    events.emit(
        RankStarted(
            device=str(hardware.device),
            threads=hardware.threads,
            torch=torch.__version__,
            backend=expected_backend(place, hardware.device, backend),
        )
    )
    if place.world_size == 1:
        print("WORLD_SIZE is 1: this process is alone and has no peers", flush=True)
    with join(place, hardware.device, backend) as group:
        events.emit(GroupJoined(world_size=place.world_size, backend=group.backend))
        judge(group, events)
    events.emit(TrainingDone(step=0))


def judge(group: Group, events: Events) -> None:
    """Test the collectives on every rank, then measure the links, which rank 0 reports. TrainerError: a wrong value."""
    place = group.place
    line = f"{place.name}: backend {group.backend}, {group.device}"
    found: list[CollectiveCheck] = []
    for one in check(group):
        found.append(one)
        line += f", {one.words}"
        if one.wrong:
            _print(line)
            raise TrainerError(f"{place.name}: {one.wrong}")
    rates, latencies = measure_links(group)
    together = measure_all_reduce(group, rates)
    barrier_ms = together.barrier_s * 1e3
    _print(f"{line}, {barrier_ms:.2f} ms, {together.sent_bytes / (1 << 20):.2g} MiB {together.seconds * 1e3:.1f} ms")
    names = group.all_gather_text(place.label)
    if place.rank == 0:
        tested = {
            "nodes": names,
            "backend": group.backend,
            "device": str(group.device),
            "checks": [one.name for one in found if not one.lacking],
            "lacking": [one.name for one in found if one.lacking],
            "barrier_ms": barrier_ms,
            "all_reduce": {
                "bytes": together.sent_bytes, "seconds": together.seconds, "mbit_s": together.rate * 8 / 1e6,
            },
            # From the row's rank to the column's; null from a rank to itself.
            "mbit_s": [[rate * 8 / 1e6 or None for rate in row] for row in rates],
            "latency_ms": [[seconds * 1e3 or None for seconds in row] for row in latencies],
        }  # fmt: skip
        events.emit(ConnectivityTested(others=tested))


def _print(line: str) -> None:
    # One write with its newline: unbuffered, print makes two, and the lines of several ranks run together.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# ── Collectives with values that every rank knows beforehand ──────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class CollectiveCheck:
    """Result of one collective on this rank."""

    name: str
    words: str
    """Part of the rank's line of output."""
    wrong: str = ""
    """Value received instead of the expected one; empty if it was right."""
    lacking: bool = False
    """True if the backend has no such collective."""


def check(group: Group) -> Iterator[CollectiveCheck]:
    """Test one collective after another, on all ranks at once. Rank r sends r + 1: no value is 0 and no two are equal,
    so that a rank counted twice or left out shows."""
    ranks, rank = group.place.world_size, group.place.rank
    every = torch.arange(1.0, ranks + 1)
    mine = torch.full((LENGTH,), rank + 1.0)
    rows = mine.repeat(ranks, 1) * every[:, None]
    total = float(every.sum())

    def in_place(collective: Callable[[Tensor], None]) -> Tensor:
        tensor = mine.clone()
        collective(tensor)
        return tensor

    cases: list[tuple[str, Callable[[], Tensor], Tensor]] = [
        ("all_reduce", lambda: in_place(group.all_reduce), torch.full((LENGTH,), total)),
        ("broadcast", lambda: in_place(group.broadcast), torch.ones(LENGTH)),
        ("all_gather", lambda: group.all_gather(mine), every[:, None].expand(ranks, LENGTH)),
        ("all_to_all", lambda: group.all_to_all(rows), (every * (rank + 1))[:, None].expand(ranks, LENGTH)),
        ("reduce_scatter", lambda: group.reduce_scatter(rows), torch.full((LENGTH,), total * (rank + 1))),
    ]
    # A group of one rank returns what it was given, without torch's collectives.
    for name, collective, expected in cases[:1] if group.alone else cases:
        try:
            found = collective()
        except RuntimeError as error:
            if "not support" not in str(error):
                raise
            yield CollectiveCheck(name=name, words=f"{name} lacking", lacking=True)
            continue
        wrong = (found != expected).flatten().nonzero()
        first = int(wrong[0]) if len(wrong) else 0
        got, wanted = float(found.flatten()[first]), float(expected.flatten()[first])
        words = f"{name} {got:g} (expected {wanted:g}) {'WRONG' if len(wrong) else 'OK'}"
        yield CollectiveCheck(
            name=name,
            words=words if name == "all_reduce" or len(wrong) else f"{name} OK",
            wrong=f"{name} gave {got:g}, expected {wanted:g}" if len(wrong) else "",
        )
    group.barrier()
    yield CollectiveCheck(name="barrier", words="barrier OK")
