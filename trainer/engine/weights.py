"""The weights of all ranks: the same before the first step, and as near as rounding lets them be ever after."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.engine.group import Group
from trainer.engine.sync.strategy import Sync
from trainer.errors import ConfigurationError, DriftError

CHECKED_EVERY = 100
"""Steps between two comparisons of all ranks' weights; they are compared before each checkpoint, too."""
SUMS = 4
NAMED = 8
"""Tensors that a message names at most."""
FARTHEST = 1e-3
"""Largest difference of two ranks' weights, as a share of their norm. Optimizers round differently on a CPU and a GPU,
and on two kinds of GPU: about 1e-7 per step, in both directions. Ranks that do not step by the same gradient are
farther apart within some steps."""


def share_weights(model: nn.Module, group: Group) -> None:
    """Rank 0's weights and buffers to all. Built from the same seed they are there already, and half a gigabyte need
    not cross the LAN: a checksum says so."""
    if group.alone:
        return
    state = model.state_dict()
    if not any(group.differing(_digest(state.values()))):
        return
    send_tensors(state, group)


def send_tensors(tensors: Mapping[str, Tensor], group: Group) -> None:
    """Rank 0's values into the others' tensors of the same names. To be called by all ranks.

    ConfigurationError: the tensors of a rank differ in name, shape or type; nothing has been sent then.
    """
    own = {name: f"{list(one.shape)} {str(one.dtype).removeprefix('torch.')}" for name, one in tensors.items()}
    theirs: dict[str, str] = json.loads(group.broadcast_text(json.dumps(own)))
    differing = [
        f"{name}: {theirs.get(name, 'none')} on rank 0, {own.get(name, 'none')} here"
        for name in dict.fromkeys((*theirs, *own))
        if theirs.get(name) != own.get(name)
    ]
    ranks = [str(rank) for rank, differs in enumerate(group.all_gather_scalar(float(bool(differing)))) if differs]
    if differing:
        named = "\n  ".join(differing[:NAMED])
        raise ConfigurationError(f"{group.place.name} has {len(differing)} other tensors than rank 0:\n  {named}")
    if ranks:
        raise ConfigurationError(f"rank {', '.join(ranks)} has other tensors than rank 0: see the message there")
    for name in theirs:
        group.broadcast(tensors[name])


def check_weights_match(sync: Sync, group: Group, step: int) -> None:
    """Compare the weights, on all ranks, after `step`. DriftError: the weights of some have left those of the
    others."""
    if group.alone:
        return
    mine, ranks = checksum(sync.shared()), group.place.world_size
    sums = [0.0] * len(mine) * ranks
    sums[group.place.rank * len(mine) : (group.place.rank + 1) * len(mine)] = mine
    sums = group.all_reduce_sum(sums)
    rows = [sums[rank * len(mine) : (rank + 1) * len(mine)] for rank in range(ranks)]
    if drifted := apart(rows):
        labels = group.all_gather_text(group.place.label)
        names = ", ".join(f"rank {rank} ({labels[rank]})" for rank in drifted)
        others = "the other ranks'" if len(drifted) < ranks else "the same"
        raise DriftError(
            f"the weights of {names} are no longer {others} after step {step}: no checkpoint is written of them;"
            " the last one is sound"
        )


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> list[float]:
    """Some sums over all values, each of every so many-th tensor, and the norm. It passes over the weights twice:
    about 1.2 s for 100 M of them on one core of a CPU."""
    chosen = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    sums = torch.stack([tensor.sum(dtype=torch.float64) for tensor in chosen]).cpu()
    norms = torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in chosen]).cpu()
    return [*(float(sums[first::SUMS].sum()) for first in range(SUMS)), float(norms.norm())]


def apart(checksums: Sequence[Sequence[float]]) -> list[int]:
    """The ranks whose checksums are not near those of most; all of them, where no checksum is near most others.

    None where no rank has numbers for weights: that is no drift, and the next loss tells it."""
    if not any(math.isfinite(one[-1]) for one in checksums):
        return []
    everyone = range(len(checksums))
    near = [[other for other in everyone if _near(checksums[rank], checksums[other])] for rank in everyone]
    most = max(near, key=len)
    return [rank for rank in everyone if rank not in most] if 2 * len(most) > len(everyone) else list(everyone)


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    allowed = FARTHEST * max(one[-1], other[-1])
    return math.isfinite(allowed) and all(abs(a - b) <= allowed for a, b in zip(one, other, strict=True))


def _digest(tensors: Iterable[Tensor]) -> bytes:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.digest()
