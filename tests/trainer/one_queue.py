"""The exchange's real threads, with the collectives of each rank in one queue, as a GPU's are in a CUDA stream: one
holds up those behind it until all ranks are there. `torchrun … -m tests.trainer.one_queue [cpu|cuda|nccl] [ranks]`: by
gloo from the CPU, by gloo from a GPU that the ranks share, by NCCL from a GPU for each rank; ranks that are to take
themselves for those of one node."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from trainer.config import RankInfo, TrainOptions
from trainer.engine.group import Group
from trainer.engine.process_group import join, leave
from trainer.engine.step_stats import all_reduce_stats
from trainer.engine.sync import methods
from trainer.engine.sync.in_nodes import in_two_levels
from trainer.engine.sync.strategy import Sync
from trainer.engine.transfers import Arriving
from trainer.engine.weights import check_weights_match, share_weights

STREAMING = TrainOptions(sync_every=4, sync_fragments=2, sync_delay=1, sync_warmup=2)
WAYS = {"fp32": TrainOptions(), "int4+8": TrainOptions(), "powersgd": TrainOptions(), "diloco": STREAMING}
STEPS = 8
STUCK_S = 200.0


@dataclass(frozen=True, kw_only=True)
class OneQueue(Group):
    queue: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    started: list[str] = field(default_factory=list)

    def start_rows(
        self, sent: Tensor, to: Sequence[int], origins: Sequence[int], *, named: str = "send_rows"
    ) -> Arriving:
        self.started.append(f"{named} of {sent.shape[-1]}")
        mine = sent.cpu()  # in the thread, and so the CUDA stream, that has encoded it
        start = partial(Group.start_rows, self, mine, to, origins, named=named)
        received = self.queue.submit(lambda: start()())
        return lambda: received.result().to(sent.device)


class Net(nn.Module):
    """Layers of different sizes, so that each bucket is known by its own; large enough for several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256 + 8 * number) for number in range(6))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum(layer(x).square().mean() for layer in self.layers)
        return total


def train(way: str, group: Group, device: torch.device) -> list[Tensor]:
    """The weights after some steps."""
    torch.manual_seed(0)
    net = Net().to(device)
    optimizer = SGD(net.parameters(), lr=0.01)
    context = methods.SyncContext(model=net, optimizer=optimizer, options=WAYS[way], group=group)
    sync: Sync = methods.build(way, context, 0, static_graph=False)
    _reverse_threads(sync, group.place.rank)
    for step in range(1, STEPS + 1):
        chance = torch.Generator().manual_seed(10 * step + group.place.rank)
        with sync.gradients(last=True):
            sync.model(torch.randn(4, 256, generator=chance).to(device)).backward()
        sync.finish()
        reported = all_reduce_stats(group, [1.0], 1.0, stop=False, sample_s=0.1, written=True)
        assert reported.sums == [group.place.world_size]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sync.stepped(step)
        check_weights_match(sync, group, step)
    sync.finalize()
    return [parameter.detach().cpu() for parameter in net.parameters()]


def _reverse_threads(sync: Sync, rank: int) -> None:
    """The thread that is ready first on one rank is the last on the other."""
    for number, mean in enumerate(getattr(getattr(sync, "_warm", sync), "_means", [])):
        usual, late_s = mean.mean, 0.004 * (number % 4 if rank == 0 else 3 - number % 4)

        def slow(flat: Tensor, usual: Callable[[Tensor], None] = usual, late_s: float = late_s) -> None:
            time.sleep(late_s)
            usual(flat)

        mean.mean = slow


def numbers_need_no_gpu(group: Group) -> None:
    """Check that the ranks' state of the run does not pass through the device whose queue the exchange fills: no
    tensor of numbers can come back from this one."""
    nowhere = replace(group, device=torch.device("meta"))
    ranks = group.place.world_size
    assert nowhere.all_reduce_sum([1.0]) == [ranks]
    assert nowhere.all_gather_scalar(group.place.rank) == list(range(ranks))
    assert nowhere.all_reduce_min([float(group.place.rank)]) == [0.0]
    assert nowhere.all_gather_text(f"rank {group.place.rank}") == [f"rank {rank}" for rank in range(ranks)]
    assert nowhere.broadcast_text(f"from {group.place.rank}") == "from 0"
    assert nowhere.all_gather_rows(torch.ones(1, 2), ranks).tolist() == [[1.0, 1.0]] * ranks
    nowhere.must_agree("options", "the same")
    weights = nn.Linear(2, 2)
    share_weights(weights, nowhere)
    nowhere.barrier()


def _give_up(queued: OneQueue) -> None:
    sys.stderr.write(f"rank {queued.place.rank} is stuck; it started last {queued.started[-9:]}\n")
    os._exit(3)


def digest(message: object) -> str:
    return hashlib.sha256(repr(message).encode()).hexdigest()


def by_gloo(place: RankInfo, device: torch.device) -> dict[str, object]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    free = Group(place=place, backend="gloo", device=torch.device("cpu")).aware_of_nodes()
    numbers_need_no_gpu(free)
    queued = OneQueue(place=place, backend="gloo", device=torch.device("cpu"), nodes=free.nodes)
    step = place.local_world_size if in_two_levels(free.nodes) else 1
    reported = {}
    with not_for_ever(queued):
        for way in ways(place):
            del queued.started[:]
            weights = train(way, queued, device)
            # Ranks with the same number on their node own like shards.
            orders = queued.all_gather_text(digest(queued.started))[place.local_rank % step :: step]
            reported[way] = {
                "collectives": len(queued.started),
                "one order": len(set(orders)) == 1,
                "as without the queue": all(map(torch.equal, weights, train(way, free, device))),
                "alike": alike(weights, free),
            }
        free.barrier()
    return reported


def by_nccl(place: RankInfo, device: torch.device) -> dict[str, object]:
    torch.cuda.set_device(device)
    with join(place, device, "auto") as group, not_for_ever(group):
        return {
            way: {"backend": group.backend, "alike": alike(train(way, group, device), group)} for way in ways(place)
        }


def ways(place: RankInfo) -> Sequence[str]:
    """Sync methods that use the exchange's threads; DDP has its own for fp32, unless ranks share nodes."""
    return list(WAYS) if place.local_world_size < place.world_size else [way for way in WAYS if way != "fp32"]


def alike(weights: list[Tensor], group: Group) -> bool:
    return len(set(group.all_gather_text(digest([tensor.tolist() for tensor in weights])))) == 1


@contextmanager
def not_for_ever(group: Group) -> Iterator[None]:
    def give_up() -> None:
        sys.stderr.write(f"rank {group.place.rank} is stuck; it started last {getattr(group, 'started', [])[-9:]}\n")
        os._exit(3)

    stuck = threading.Timer(STUCK_S, give_up)
    stuck.daemon = True
    stuck.start()
    yield
    stuck.cancel()


def main(where: str = "cpu", ranks_of_node: str = "") -> int:
    place = RankInfo.from_environ(os.environ)
    device = torch.device("cuda", place.local_rank)
    if ranks_of_node:
        number = int(ranks_of_node)
        place = replace(place, local_rank=place.rank % number, local_world_size=number)
    reported = by_nccl(place, device) if where == "nccl" else by_gloo(place, torch.device(where))
    if place.rank == 0:
        sys.stdout.write(json.dumps(reported) + "\n")
    return leave(place, 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
