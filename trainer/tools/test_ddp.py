"""Do all ranks reach each other, and do their sums come out right? Then how fast each way is.

Start it under torchrun, or on each machine with MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK set.
"""

from __future__ import annotations

import sys

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from contract.events import ConnectivityTested, GroupJoined, RankFailed, RankStarted, TrainingDone
from trainer.config import RankInfo, TrainOptions
from trainer.engine.group import Group
from trainer.engine.hardware.device import prepare_hardware
from trainer.engine.process_group import expected_backend, join, leave
from trainer.engine.reporting.events import Events
from trainer.errors import TrainerError
from trainer.tools.known_values import CollectiveCheck, check
from trainer.tools.link_rates import Links, measure_links, of_all_at_once


def run(place: RankInfo, backend: str) -> int:
    """Exit code 0, or 1 where a value was wrong or the others stopped answering."""
    code, events = 0, Events(place)
    try:
        record(_test)(place, place.backend if backend == "auto" else backend, events)
    except TrainerError as error:
        events.failed(error)
        code = error.exit_code
    except RuntimeError as error:
        message = f"the others stopped answering: {error}"
        events.emit(RankFailed(error=type(error).__name__, message=message, frame=""))
        print(f"{place.name}: the others stopped answering: {error}", file=sys.stderr)
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
    """Known values first, on every rank; then latency and bandwidth, which rank 0 reports.

    TrainerError: a value was wrong here.
    """
    place = group.place
    found: list[CollectiveCheck] = []
    for one in check(group):
        found.append(one)
        if one.wrong:
            _say(f"{place.name}: backend {group.backend}, {group.device}, {_words(found)}")
            raise TrainerError(f"{place.name}: {one.wrong}")
    links = measure_links(group)
    together = of_all_at_once(group, links)
    small, large = together.barrier_s * 1e3, together.seconds * 1e3
    _say(
        f"{place.name}: backend {group.backend}, {group.device}, {_words(found)},"
        f" {small:.2f} ms, {together.sent_bytes / (1 << 20):.2g} MiB {large:.1f} ms"
    )
    names = group.all_gather_text(place.label)
    if place.rank == 0:
        all_reduce = {"bytes": together.sent_bytes, "seconds": together.seconds, "mbit_s": together.rate * 8 / 1e6}
        tested = {
            "nodes": names,
            "backend": group.backend,
            "device": str(group.device),
            "checks": [one.name for one in found if not one.lacking],
            "lacking": [one.name for one in found if one.lacking],
            "barrier_ms": together.barrier_s * 1e3,
            "all_reduce": all_reduce,
            **_matrices(links),
        }
        events.emit(ConnectivityTested(others=tested))


def _matrices(links: Links) -> dict[str, object]:
    """From row's rank to column's; null where there is no way to measure: to itself."""
    return {
        "mbit_s": [[rate * 8 / 1e6 or None for rate in row] for row in links.rates],
        "latency_ms": [[seconds * 1e3 or None for seconds in row] for row in links.latencies_s],
    }


def _words(found: list[CollectiveCheck]) -> str:
    return ", ".join(one.words for one in found)


def _say(line: str) -> None:
    # One write with its newline: unbuffered, print makes two, and the lines of several ranks run together.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
