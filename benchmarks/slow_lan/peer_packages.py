"""Peers in separate packages with their own rendezvous: torchft and hivemind.

Their modules are imported when they are built: without them, the benchmark skips and names two candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

Built = tuple[Callable[[], None], Callable[[], None]]
"""Functions that the loop calls after each backward pass, and at the end."""
LIGHTHOUSE_PORT = 29300
STORE_PORT = 29301
MATCHMAKING_S = 2.0
"""Seconds of matchmaking: with hivemind's default of 15 s before each average, one would take ten of our steps."""


def torchft_diloco(model: nn.Module, optimizer: torch.optim.Optimizer, every: int) -> Built:
    """DiLoCo with the outer optimizer of its paper (Nesterov, 0.7 and 0.9; arXiv:2311.08105); each node is a replica
    group of one."""
    import torchft
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    rank, world = dist.get_rank(), dist.get_world_size()
    first, own = os.environ["MASTER_ADDR"], os.environ["RIG_ADDRESS"]
    lighthouse = LighthouseServer(bind=f"0.0.0.0:{LIGHTHOUSE_PORT}", min_replicas=world) if rank == 0 else None
    stores = [dist.TCPStore(own, STORE_PORT, 1, is_master=True, wait_for_workers=False)]  # lives until the end
    dist.barrier()

    def keep() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def put(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=60)), load_state_dict=put, state_dict=keep,
        min_replica_size=world, use_async_quorum=False, rank=0, world_size=1, store_addr=own, store_port=STORE_PORT,
        lighthouse_addr=f"http://{first}:{LIGHTHOUSE_PORT}", replica_id=f"node{rank}", hostname=own,
        timeout=timedelta(seconds=120),
        init_sync=False,  # its first checkpoint would be asked for under the host's name, not its address
    )  # fmt: skip
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    together = DiLoCo(manager, [model], optimizer, outer, sync_every=every)
    together.__enter__()

    def close() -> None:
        dist.barrier()
        manager.shutdown(wait=False)
        if lighthouse:
            lighthouse.shutdown()
        stores.clear()

    return optimizer.step, close


def hivemind_optimizer(optimizer: torch.optim.Optimizer, global_batch: int) -> Built:
    """Gradients averaged whenever the swarm has seen `global_batch` samples."""
    import hivemind

    rank, world, own = dist.get_rank(), dist.get_world_size(), os.environ["RIG_ADDRESS"]
    place = [f"/ip4/{own}/tcp/0"]
    addresses: list[list[str]] = [[]]
    if rank == 0:
        dht = hivemind.DHT(host_maddrs=place, start=True)
        addresses = [[str(address) for address in dht.get_visible_maddrs()]]
    dist.broadcast_object_list(addresses)
    if rank:
        dht = hivemind.DHT(initial_peers=addresses[0], host_maddrs=place, start=True)
    share = round(global_batch * (rank + 1) / world) - round(global_batch * rank / world)
    together = hivemind.Optimizer(
        dht=dht, run_id="slow-lan", target_batch_size=global_batch, batch_size_per_step=share, optimizer=optimizer,
        use_local_updates=False, matchmaking_time=MATCHMAKING_S, averaging_timeout=60.0,
        averager_opts={"request_timeout": MATCHMAKING_S / 2},
        tracker_opts={"min_refresh_period": 0.2, "default_refresh_period": 0.5},
    )  # fmt: skip
    dist.barrier()
    return together.step, _end_children


def _end_children() -> None:
    """Kill hivemind's processes: its own shutdown waits for peers that have already exited."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
