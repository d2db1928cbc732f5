"""Muon's matrices shared by the ranks of a node: each makes some of them orthogonal, and all get all of them.

Within a node only: over a LAN the directions of GPT-2 124M take longer than computing them. Each node does the same
work in the same parts, so that equal hardware gives equal bits on all of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainer.engine.group import Group
from trainer.engine.hardware import compiling
from trainer.engine.optimization.muon import Directions, Muon, flops, newton_schulz
from trainer.engine.sync.in_nodes import by_node, owners

WORTH = 0.95
"""Share of the time that the quicker way may take at most to be preferred."""


def muon_of(optimizer: Optimizer) -> Muon | None:
    """The part of it that is Muon."""
    return next((one for one in [optimizer, *getattr(optimizer, "parts", [])] if isinstance(one, Muon)), None)


def share_if_faster(muon: Muon, group: Group, *, before: bool | None = None) -> tuple[bool, str]:
    """Let the ranks of each node share the matrices where that is faster, and return whether, and why in a sentence:
    empty where nothing could be shared. To be called by all ranks, which then step by equal gradients.

    `before`: the decision of the run that is continued.
    """
    nodes = group.nodes or tuple(range(group.place.world_size))
    if owners(nodes) < 2:
        return False, ""
    shared = SharedMuon(muon, group.clones(1)[0])
    if before is None:
        whole_s, shared_s = shared.trial()
        told = f"{_ms(shared_s)} for a trial that takes each rank {_ms(whole_s)} by itself"
        chosen = shared_s <= WORTH * whole_s
    else:
        told, chosen = "as decided before", before
    if chosen:
        muon.start = shared.start
    return chosen, f"Muon's matrices are {'' if chosen else 'not '}shared by the ranks of a node: {told}"


class SharedMuon:
    def __init__(self, muon: Muon, group: Group) -> None:
        nodes = by_node(group.nodes)
        self._muon, self._group = muon, group
        self._peers = next(node for node in nodes if group.place.rank in node)
        self._owners = self._peers[: owners(group.nodes)]
        self._number = self._peers.index(group.place.rank)
        self._parts = _shared_out(muon, len(self._owners))

    def start(self, matrices: Sequence[Tensor], group: Mapping[str, Any]) -> Directions:
        """Compute this rank's part, and begin to send it."""
        shape = matrices[0].shape
        counts = self._parts.get((len(matrices), shape)) or _even(len(matrices), [0.0] * len(self._owners), 1.0)
        width = max(counts)
        sends = self._number < len(self._owners)
        row = matrices[0].new_zeros(1, width, *shape, dtype=self._muon.dtype)
        if sends and counts[self._number]:
            first = sum(counts[: self._number])
            mine = matrices[first : first + counts[self._number]]
            row[0, : len(mine)] = self._muon.orthogonal(mine, group)
        sent = row.expand(len(self._peers), *row.shape[1:]) if sends else row[:0]
        arriving = self._group.start_rows(
            sent.contiguous().view(torch.uint8), self._peers if sends else [], self._owners, named="muon"
        )

        def directions() -> Tensor:
            rows = arriving().view(self._muon.dtype)
            return torch.cat([one[:count] for one, count in zip(rows, counts, strict=True)])

        return directions

    def trial(self) -> tuple[float, float]:
        """Seconds for as many of the costliest matrices as there are owners: by each rank alone, and shared."""
        every = ((group, one) for group in self._muon.param_groups for one in group["params"])
        shapes = ((group, parts[0].shape) for group, one in every if (parts := _parts(one, group)))
        group, shape = max(shapes, key=lambda one: flops(one[1], one[0]["ns_steps"]))
        device = group["params"][0].device
        some = list(torch.randn(len(self._owners), *shape, device=device))
        ways: tuple[Callable[[], Tensor], ...] = (
            lambda: self._muon.start_all(some, group)(),
            lambda: self.start(some, group)(),
        )
        whole_s, shared_s = (max(self._group.all_gather_scalar(self._seconds(way))) for way in ways)
        return whole_s, shared_s

    @torch.no_grad()
    def _seconds(self, work: Callable[[], Tensor], times: int = 2) -> float:
        float(work().flatten()[0])
        self._group.barrier()
        began = time.perf_counter()
        for _ in range(times):
            float(work().flatten()[0])  # waits for a GPU
        return (time.perf_counter() - began) / times


def compile_if_faster(muon: Muon, group: Group) -> str:
    """Compile the iteration on a GPU, unless that fails or brings nothing there; why not, or the gain, in a sentence.
    To be called by all ranks: they decide alike."""
    parameter = muon.param_groups[0]["params"][0]
    device, settings = parameter.device, muon.param_groups[0]
    lacking = compiling.what_lacks(device) if device.type == "cuda" else "it is for GPUs"
    if min(group.all_gather_scalar(float(not lacking))) == 0:
        return ""
    matrices = list(torch.randn(8, *parameter.shape, device=device))
    times, failed = [], 0.0
    for iteration in (newton_schulz, torch.compile(newton_schulz, dynamic=False)):
        muon.iteration = iteration
        try:
            times.append(_gpu_s(lambda: muon.orthogonal(matrices, settings)))
        except Exception as error:
            if not compiling.is_of_the_compiler(error):
                raise
            failed = 1.0
            times.append(0.0)
    eager_s, compiled_s = (max(group.all_gather_scalar(one)) for one in times)
    if sum(group.all_gather_scalar(failed)) or compiled_s > WORTH * eager_s:
        muon.iteration = newton_schulz
        return (
            f"Muon's iteration is not compiled: {'it failed' if failed else f'{_ms(compiled_s)}, not {_ms(eager_s)}'}"
        )
    return f"Muon's iteration is compiled: {_ms(compiled_s)} instead of {_ms(eager_s)}"


@torch.no_grad()
def _gpu_s(work: Callable[[], Tensor]) -> float:
    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / 10


def _parts(parameter: Tensor, group: Mapping[str, Any]) -> Sequence[Tensor]:
    return parameter.detach().chunk(group["parts"])


def _shared_out(muon: Muon, among: int) -> dict[tuple[int, torch.Size], list[int]]:
    """Matrices of each owner, for all matrices of a group that have one shape: by their number and shape."""
    found: dict[tuple[int, torch.Size], list[int]] = {}
    load = [0.0] * among
    for group in muon.param_groups:
        alike: defaultdict[torch.Size, int] = defaultdict(int)
        for parameter in group["params"]:
            for part in _parts(parameter, group):
                alike[part.shape] += 1
        for shape, count in alike.items():
            found[count, shape] = _even(count, load, float(flops(shape, group["ns_steps"])))
    return found


def _even(count: int, load: list[float], cost: float) -> list[int]:
    """Numbers that differ by 1 at most; those who have least to do so far get one more. Adds to their `load`."""
    counts = [count // len(load)] * len(load)
    for owner in sorted(range(len(load)), key=lambda one: (load[one], one))[: count % len(load)]:
        counts[owner] += 1
    for owner, own in enumerate(counts):
        load[owner] += own * cost
    return counts


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
