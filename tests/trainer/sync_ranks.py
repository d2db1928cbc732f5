"""Behavior of the sync methods between ranks, printed by rank 0: `torchrun … -m tests.trainer.sync_ranks FOLDER`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from trainer.config import SYNCS, RankInfo, TrainOptions
from trainer.engine.checkpoints import rank_state
from trainer.engine.group import Group
from trainer.engine.process_group import leave
from trainer.engine.sync import methods
from trainer.engine.sync.strategy import RankState, Sync
from trainer.engine.transfers import Arriving
from trainer.engine.weights import share_weights

OPTIONS = TrainOptions(
    sync_every=3, sync_warmup=2, sync_codec="int8", sync_density=0.25, sync_rank=2, checkpoint_every=0, lr=1e-2
)
STREAMING = replace(OPTIONS, sync_fragments=3, sync_every=6, sync_delay=1, sync_codec="int4")
WAYS: dict[str, tuple[str, TrainOptions]] = {
    **{name: (name, OPTIONS) for name in SYNCS},
    "streaming diloco": ("diloco", STREAMING),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.unused = nn.Linear(20, 33), nn.Linear(33, 5), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


class Training:
    """A model on its way, as the loop would have it."""

    def __init__(self, way: str, group: Group, weights: dict[str, Tensor] | None = None, step: int = 0) -> None:
        name, options = WAYS[way]
        torch.manual_seed(1)
        self.net = Net()
        if name == "fp32":  # DDP needs a flag for a weight that takes no part
            del self.net.unused
        if weights:
            self.net.load_state_dict(weights)
        self.optimizer = AdamW(self.net.parameters(), lr=options.lr)
        for parameter in self.net.parameters():  # as resuming does: its state is there before anything is read
            parameter.grad = torch.zeros_like(parameter)
        self._idle_step()
        self.group = group
        context = methods.SyncContext(model=self.net, optimizer=self.optimizer, options=options, group=group)
        self.sync: Sync = methods.build(name, context, step, static_graph=False)
        self.step = step

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step += 1
            chance = torch.Generator().manual_seed(100 * self.step + self.group.place.rank)
            for part in range(2):
                x, y = torch.randn(4, 20, generator=chance), torch.randn(4, 5, generator=chance)
                with self.sync.gradients(last=part == 1):
                    ((self.sync.model(x) - y) ** 2).sum().backward()
            self.sync.finish()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.sync.stepped(self.step)

    def _idle_step(self) -> None:
        for group in self.optimizer.param_groups:
            rate, group["lr"] = group["lr"], 0.0
            decay, group["weight_decay"] = group["weight_decay"], 0.0
            self.optimizer.step()
            group["lr"], group["weight_decay"] = rate, decay
        for state in self.optimizer.state.values():
            state["step"].zero_()
        self.optimizer.zero_grad(set_to_none=True)

    def copy_moments(self, other: Training) -> None:
        for mine, theirs in zip(self.net.parameters(), other.net.parameters(), strict=True):
            for name, value in other.optimizer.state[theirs].items():
                self.optimizer.state[mine][name].copy_(value)


def spread(group: Group, tensors: Sequence[Tensor]) -> float:
    """The largest difference between a rank's values and rank 0's."""
    largest = 0.0
    for tensor in tensors:
        first = tensor.detach().clone()
        group.broadcast(first)
        largest = max(largest, float((first - tensor.detach()).abs().max()))
    return max(group.all_gather_scalar(largest))


def alike(way: str, group: Group) -> float:
    training = Training(way, group)
    training.steps(7)
    training.sync.finalize()
    return spread(group, list(training.net.parameters()))


@dataclass(frozen=True, kw_only=True)
class Counted(Group):
    """Counts bytes that leave this rank's node."""

    everywhere: tuple[int, ...]
    """Node of each process."""
    sent: list[int] = field(default_factory=list)

    def start_rows(
        self, sent: Tensor, to: Sequence[int], origins: Sequence[int], *, named: str = "send_rows"
    ) -> Arriving:
        everyone, here = self.ranks or range(self.place.world_size), self.everywhere[dist.get_rank()]
        for rank, row in zip(to, sent, strict=True):
            if self.everywhere[everyone[rank]] != here:
                self.sent.append(row.nbytes)
        return super().start_rows(sent, to, origins, named=named)


def between_nodes(way: str, group: Group, *, two_levels: bool) -> float:
    """Bytes that all ranks send to other nodes in some steps. `two_levels`: as far as there are several on a node."""
    counted = Counted(
        place=group.place, backend="gloo", device=group.device, everywhere=group.nodes,
        nodes=group.nodes if two_levels else (),
    )  # fmt: skip
    Training(way, counted).steps(6)
    return sum(group.all_gather_scalar(float(sum(counted.sent))))


def corrected(group: Group) -> float:
    """The spread of weights that differed by rank, once rank 0's are everybody's."""
    torch.manual_seed(group.place.rank)
    net = Net()
    share_weights(net, group)
    return spread(group, list(net.parameters()))


def error(way: str, group: Group) -> float:
    """Compute the error of one step's gradients against the exact mean, by norm; for local steps, of a warm-up step."""
    mine, exact = Training(way, group), Training(way, group)
    chance = torch.Generator().manual_seed(group.place.rank)
    x, y = torch.randn(8, 20, generator=chance), torch.randn(8, 5, generator=chance)
    with mine.sync.gradients(last=True):
        ((mine.sync.model(x) - y) ** 2).sum().backward()
    mine.sync.finish()
    ((exact.net(x) - y) ** 2).sum().backward()
    wrong = right = 0.0
    for found, own in zip(mine.net.parameters(), exact.net.parameters(), strict=True):
        mean = torch.zeros_like(own) if own.grad is None else own.grad.clone()
        group.all_reduce(mean)
        mean /= group.place.world_size
        assert found.grad is not None
        wrong += float(((found.grad - mean) ** 2).sum())
        right += float((mean**2).sum())
    return (wrong / right) ** 0.5


def resumed(way: str, group: Group, folder: Path) -> float:
    """Measure how far a training that resumes from files is from the undisturbed one, in any weight."""
    whole = Training(way, group)
    whole.steps(4)
    keep(folder, whole.sync, group)
    with whole.sync.use_averaged():
        weights = {name: tensor.clone() for name, tensor in whole.net.state_dict().items()}
    again = Training(way, group, weights, step=4)
    again.copy_moments(whole)
    group.barrier()
    rank_state.restore(folder, 4, again.sync, group, _never)
    whole.steps(5)
    again.steps(5)
    pairs = zip(whole.net.parameters(), again.net.parameters(), strict=True)
    return max(group.all_gather_scalar(max(float((a - b).detach().abs().max()) for a, b in pairs)))


def keep(folder: Path, sync: Sync, group: Group) -> None:
    """Save what this rank alone knows after step 4, where it knows something."""
    mine = RankState(rank=group.place.rank, world_size=group.place.world_size, state=sync.state())
    if mine.state:
        rank_state.save(folder, 4, mine, sync.layout)


def left(way: str, group: Group, folder: Path) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return what all ranks have not yet sent after some steps, and the weights that they share."""
    all_of_them = Training(way, group)
    all_of_them.steps(4)
    keep(folder, all_of_them.sync, group)
    with all_of_them.sync.use_averaged():
        weights = {name: tensor.clone() for name, tensor in all_of_them.net.state_dict().items()}
    return _unsent(all_of_them.sync, group), weights


def fewer(way: str, some: Group, folder: Path, before: tuple[list[Tensor], dict[str, Tensor]]) -> dict[str, float]:
    """Resume all ranks but one from what all have left: what had not yet been sent is sent now."""
    unsent, weights = before
    training = Training(way, some, weights, step=4)
    rank_state.restore(folder, 4, training.sync, some, _never)
    now = _unsent(training.sync, some)
    pairs = zip(unsent, now, strict=bool(now))  # DDP keeps nothing
    lost = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
    training.steps(3)
    training.sync.finalize()
    return {
        "unsent": max((float(each.abs().max()) for each in unsent), default=0.0),
        "lost": lost,
        "fewer": spread(some, list(training.net.parameters())),
    }


def _unsent(sync: Sync, group: Group) -> list[Tensor]:
    """Compute what the next mean would bring if all gradients were zero."""
    means = getattr(sync, "_means", [])
    buckets = getattr(sync, "_buckets", [])
    found = []
    for mean, bucket in zip(means, buckets, strict=True):
        mine = RankState(rank=group.place.rank, world_size=group.place.world_size, state=mean.state())
        whole = mean.owed([mine], bucket.count)
        group.all_reduce(whole)
        found.append(whole)
    return found


def _never(line: str) -> None:
    raise AssertionError(line)


def main(folder: Path) -> int:
    place = RankInfo.from_environ(os.environ)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = Group(place=place, backend="gloo", device=torch.device("cpu")).aware_of_nodes()
    reported: dict[str, dict[str, float]] = {"weights": {"corrected": corrected(group)}}
    for way in WAYS:
        reported[way] = {"alike": alike(way, group), "error": error(way, group)}
        reported[way]["resumed"] = resumed(way, group, folder / way / "same")
        reported[way]["flat"] = between_nodes(way, group, two_levels=False)
        reported[way]["sent"] = between_nodes(way, group, two_levels=True)
    before = {way: left(way, group, folder / way / "fewer") for way in WAYS}
    group.barrier()
    # torch names groups by how many a process has made: no larger one can follow.
    some = group.subgroup(range(place.world_size - 1))
    if some:
        for way in WAYS:
            reported[way] |= fewer(way, some, folder / way / "fewer", before[way])
    if place.rank == 0:
        sys.stdout.write(json.dumps(reported) + "\n")
    group.barrier()
    return leave(place, 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
