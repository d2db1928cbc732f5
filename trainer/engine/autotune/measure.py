"""Measurements for the forecast, with all ranks at once in a few seconds: nodes, links, the cost of each method."""

from __future__ import annotations

import math
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
from trainer.engine.sync.in_nodes import by_node, in_two_levels, owners
from trainer.engine.sync.methods import SyncMethod, ladder
from trainer.engine.transfers import Arriving

LONG_ENOUGH_S = 0.2
"""Seconds of a transfer that suffice to measure it: shorter ones are carried by buffers on the way."""
LARGEST = 1 << 25
"""Bytes of a transfer; a link that carries them in less is fast enough not to matter much."""
SMALLEST = 1 << 14
SMALLEST_S = 1e-3
"""Seconds of a step below which no more steps are taken to measure it."""
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
    """Figures of the host, where they are requested."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Amount of work in a step."""

    model: nn.Module
    samples_per_step: int
    units_per_sample: float
    unit: str


def measure(own: Own, work: Work, options: TrainOptions, group: Group) -> Measurement:
    """The same on every rank. To be called by all ranks."""
    names = group.all_gather_text(group.place.label)
    rates = links(group)
    where = group.nodes or tuple(range(group.place.world_size))
    upload, download = rates_of_nodes(rates, where)
    hosts = [where.index(node) if where.count(node) > 1 else -1 for node in where]  # first rank there; -1: the only one
    inside = _inside(rates, where)
    parameters = [parameter for parameter in work.model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters)
    efficiency = _efficiency(min(*upload, *download), group)
    trial = min(cut(parameters, SAMPLE), key=lambda bucket: abs(bucket.count - SAMPLE))
    rungs = ladder(options, work.model, group.nodes)
    if not options.forecast:  # no run takes an unproven method unasked
        rungs = tuple(rung for rung in rungs if rung.proven or rung.name == options.sync)
    costs = [_cost(rung, efficiency, trial, group) for rung in rungs]
    everyones = [group.all_gather_scalar(number) for number in (own.sample_s, own.step_s, float(own.micro_batch))]
    return Measurement(
        nodes=tuple(
            NodeSpeed(
                node=names[rank], rank=rank, sample_s=everyones[0][rank], step_s=everyones[1][rank],
                upload=upload[rank], download=download[rank], micro_batch=int(everyones[2][rank]),
                host=hosts[rank], inside=inside[rank],
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


def optimizer_s(model: nn.Module, optimizer: Optimizer, group: Group) -> float:
    """Seconds of clipping and one optimizer step, before the first one. To be called by all ranks: they take equally
    many at once, as those of a node share its memory's bandwidth."""
    with standing_still(model, optimizer) as step:
        step()
        group.barrier()
        began = time.perf_counter()
        step()
        first_s = time.perf_counter() - began
        more = math.ceil(LONG_ENOUGH_S / max(*group.all_gather_scalar(first_s), SMALLEST_S)) - 1
        began = time.perf_counter()
        for _ in range(more):
            step()
        return (first_s + time.perf_counter() - began) / (1 + more)


def links(group: Group) -> Tensor:
    """(ranks, ranks): bytes per second from row's rank to column's, all at once, as in an exchange; 0 where this was
    not tried."""
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


def rates_of_nodes(rates: Tensor, nodes: Sequence[int]) -> tuple[list[float], list[float]]:
    """Upload and download of each rank's node, in bytes per second: the best that its ranks reached together, with
    neighbours on other nodes; of each rank by itself with any peer, if all are on one node. `rates`: of `links`."""
    ranks = len(rates)
    where = list(nodes) if len(set(nodes)) > 1 else list(range(ranks))
    ways: list[list[float]] = []
    for sending in (rates, rates.T):
        best = dict.fromkeys(where, 0.0)
        for by in range(1, ranks):
            pairs = [(rank, (rank + by) % ranks) for rank in range(ranks)]
            if sending is not rates:
                pairs = [(to, origin) for origin, to in pairs]
            together = dict.fromkeys(where, 0.0)
            for rank, peer in pairs:
                if where[rank] != where[peer]:
                    together[where[rank]] += float(sending[rank, peer])
            best = {node: max(best[node], together[node]) for node in best}
        ways.append([best[node] for node in where])
    return ways[0], ways[1]


def _inside(rates: Tensor, nodes: Sequence[int]) -> list[float]:
    """Bytes per second between each rank and the others of its node, the slower way; 0 where there are none."""
    local = torch.tensor([[a == b for b in nodes] for a in nodes])
    among = rates * local
    return torch.minimum(among.amax(1), among.amax(0)).tolist()


def _efficiency(link: float, group: Group) -> dict[Pattern, float]:
    """The share of the slowest link's rate, `link` in bytes per second, that each way of sending reaches."""
    if group.alone:
        return {"ring": 1.0, "scatter_gather": 1.0}
    # Between nodes as many ranks of each send as own a shard, each its part of what the node sends.
    levels = by_node(group.nodes) if in_two_levels(group.nodes) else []
    senders, parts = (len(levels), owners(group.nodes)) if levels else (group.place.world_size, 1)
    copies = 2 * (senders - 1) / senders
    values = int(min(LARGEST, max(SMALLEST, 1.5 * LONG_ENOUGH_S * link / copies)) / 4 / senders / parts) * senders
    flat = torch.zeros(max(senders, values))
    values = len(flat) * parts

    def ring() -> None:
        group.all_reduce(flat)

    def scatter_gather() -> None:
        group.all_to_all(flat.view(senders, -1))
        group.all_gather(flat[: len(flat) // senders])

    def between_nodes() -> None:
        number = next(node for node in levels if group.place.rank in node).index(group.place.rank)
        peers = sorted(node[number] for node in levels) if number < parts else []
        group.start_rows(flat.view(senders, -1)[: len(peers)], peers, peers)()
        group.start_rows(flat[: len(flat) // senders].expand(len(peers), -1), peers, peers)()

    found: dict[Pattern, float] = {"ring": 1.0}
    ways: tuple[tuple[Pattern, Callable[[], None]], ...] = (("ring", ring), ("scatter_gather", scatter_gather))
    for pattern, send in (("scatter_gather", between_nodes),) if levels else ways:
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
        whole=rung.whole,
    )


def codec_s(rung: SyncMethod, like: Bucket, group: Group) -> float:
    """Measure the seconds of this rank's own work on such a bucket, with peers that answer at once."""
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

    def start_rows(self, sent: Tensor, to: Sequence[int], origins: Sequence[int], *, named: str = "") -> Arriving:  # noqa: ARG002  # there is no wait to name
        first = sent[:1] if len(to) else sent.new_zeros(1, *sent.shape[1:])
        return lambda: first.expand(len(origins), *sent.shape[1:]).contiguous()

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
