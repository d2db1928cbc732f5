"""Measurements for the forecast, with all ranks at once in a few seconds: nodes, links, the cost of each method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contract.cost_model.measurement import HostStats, Measurement, NodeSpeed, Pattern, SyncCost
from trainer.config import TrainOptions
from trainer.engine.group import Group
from trainer.engine.optimization.optimizer import standing_still
from trainer.engine.sync.buckets import Bucket, cut
from trainer.engine.sync.methods import SyncMethod, ladder
from trainer.engine.transfers import Arriving

LONG_ENOUGH_S = 0.2
"""Seconds of a transfer that suffice to measure it: shorter ones are carried by buffers on the way."""
LARGEST = 1 << 25
"""Bytes of a transfer; a link that carries them in less is fast enough not to matter much."""
SMALLEST = 1 << 14
TRIES = 2
"""Trials of each way of sending."""
SHIFTS = 4
"""Neighbours that each rank tries its link with."""
SAMPLE = 1 << 20
"""Values, about, that a way's own work is timed with."""


@dataclass(frozen=True, kw_only=True)
class Own:
    """Measurements that this rank has made by itself."""

    sample_s: float
    step_s: float
    micro_batch: int
    around: HostStats | None = None
    """Where somebody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much there is to do in a step."""

    model: nn.Module
    samples_per_step: int
    units_per_sample: float
    unit: str


def measure(own: Own, work: Work, options: TrainOptions, group: Group) -> Measurement:
    """The same on every rank. To be called by all ranks."""
    names = group.all_gather_text(group.place.label)
    rates = links(group)
    upload, download = rates.amax(1).tolist(), rates.amax(0).tolist()
    parameters = [parameter for parameter in work.model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters)
    efficiency = _efficiency(min(*upload, *download), group)
    trial = min(cut(parameters, SAMPLE), key=lambda bucket: abs(bucket.count - SAMPLE))
    costs = [_cost(rung, efficiency, trial, group) for rung in ladder(options, work.model)]
    everyones = [group.all_gather_scalar(number) for number in (own.sample_s, own.step_s, float(own.micro_batch))]
    return Measurement(
        nodes=tuple(
            NodeSpeed(
                node=names[rank], rank=rank, sample_s=everyones[0][rank], step_s=everyones[1][rank],
                upload=upload[rank], download=download[rank], micro_batch=int(everyones[2][rank]),
            )
            for rank in range(group.place.world_size)
        ),
        latency_s=_latency(group),
        parameters=count,
        samples_per_step=work.samples_per_step,
        units_per_sample=work.units_per_sample,
        unit=work.unit,
        costs=tuple(costs),
        links=tuple(tuple(map(round, row)) for row in rates.tolist()),
    )  # fmt: skip


def optimizer_s(model: nn.Module, optimizer: Optimizer) -> float:
    """Seconds of clipping and one optimizer step, before the first one."""
    with standing_still(model, optimizer) as step:
        return _mean_s(step)


def links(group: Group) -> Tensor:
    """(ranks, ranks): bytes per second from row's rank to column's, all at once, as in an exchange; 0 where this was
    not tried. What counts of a rank is its best with any peer."""
    ranks = group.place.world_size
    best = torch.zeros(ranks, ranks, dtype=torch.float64)
    size = SMALLEST
    for by in list(range(1, ranks))[:SHIFTS]:
        group.shift(torch.empty(SMALLEST, dtype=torch.uint8), by)  # not timed: the first one makes the connection
        while True:
            seconds = group.shift(torch.empty(size, dtype=torch.uint8), by)
            slowest = max(group.all_gather_scalar(seconds))
            if slowest >= LONG_ENOUGH_S or size >= LARGEST:
                break
            size = min(LARGEST, max(2 * size, int(size * 1.5 * LONG_ENOUGH_S / max(slowest, 1e-6))))
        best[(group.place.rank - by) % ranks, group.place.rank] = size / seconds
    group.all_reduce(best)
    return best


def _efficiency(link: float, group: Group) -> dict[Pattern, float]:
    """The share of the slowest link's rate, `link` in bytes per second, that each way of sending reaches."""
    ranks = group.place.world_size
    if group.alone:
        return {"ring": 1.0, "scatter_gather": 1.0}
    copies = 2 * (ranks - 1) / ranks
    values = int(min(LARGEST, max(SMALLEST, 1.5 * LONG_ENOUGH_S * link / copies)) / 4 / ranks) * ranks
    flat = torch.zeros(values)

    def ring() -> None:
        group.all_reduce(flat)

    def scatter_gather() -> None:
        group.all_to_all(flat.view(ranks, -1))
        group.all_gather(flat[: values // ranks])

    found: dict[Pattern, float] = {}
    ways: tuple[tuple[Pattern, Callable[[], None]], ...] = (("ring", ring), ("scatter_gather", scatter_gather))
    for pattern, send in ways:
        send()
        group.barrier()
        began = time.perf_counter()
        for _ in range(TRIES):
            send()
        seconds = max(group.all_gather_scalar(time.perf_counter() - began)) / TRIES
        found[pattern] = min(1.0, copies * 4 * values / link / seconds)
    return found


def _cost(rung: SyncMethod, efficiency: Mapping[Pattern, float], trial: Bucket, group: Group) -> SyncCost:
    return SyncCost(
        sync=rung.name,
        bytes_per_parameter=rung.bytes_per_parameter,
        codec_s_per_parameter=max(group.all_gather_scalar(codec_s(rung, trial, group))) / trial.count,
        collectives=rung.collectives,
        every=rung.every,
        overlap=rung.overlap,
        pattern=rung.pattern,
        efficiency=efficiency[rung.pattern],
        proven=rung.proven,
    )


def codec_s(rung: SyncMethod, like: Bucket, group: Group) -> float:
    """Seconds of this rank's own work on such a bucket, with peers that answer at once."""
    if rung.mean_of is None:
        return 0.0
    bucket = Bucket([nn.Parameter(torch.empty_like(parameter)) for parameter in like.parameters])
    bucket.set_gradients(torch.randn(bucket.count, device=bucket.device))
    mean = rung.mean_of(bucket, Echo(place=group.place, backend="none", device=bucket.device, nodes=group.nodes))

    def exchange() -> None:
        flat = bucket.gradients()
        mean.mean(flat)
        bucket.set_gradients(flat)
        float(flat[0])

    return _mean_s(exchange)


def _mean_s(work: Callable[[], None]) -> float:
    """Seconds of one time. Long enough for a container to use up its CPU quota and pause: for some
    milliseconds it is as fast as the whole machine."""
    work()
    done, began = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - began < LONG_ENOUGH_S:
        work()
        done += 1
    return (time.perf_counter() - began) / done


class Echo(Group):
    """Peers that send what they are sent."""

    def start_all_to_all(self, sent: Tensor) -> Arriving:
        return lambda: sent

    def start_all_gather(self, sent: Tensor) -> Arriving:
        return lambda: sent.expand(self.place.world_size, *sent.shape)

    def start_rows(self, sent: Tensor, to: Sequence[int], origins: Sequence[int], *, named: str = "") -> Arriving:
        first = sent[:1] if len(to) else sent.new_zeros(1, *sent.shape[1:])
        return lambda: first.expand(len(origins), *sent.shape[1:])

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.mul_(self.place.world_size)

    def clones(self, number: int) -> list[Group]:
        return [self] * number


def _latency(group: Group) -> float:
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        group.barrier()
        taken.append(time.perf_counter() - began)
    return median(group.all_gather_scalar(median(taken)))
