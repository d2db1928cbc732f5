"""One rank of another system's sync method, with our model, data, order and learning rates.

    python -m benchmarks.slow_lan.peer_rank --peer fp16 --data-dir Data …     # under torchrun's variables

Accepts the options of `train.command`, ignores those that only our trainer has, and emits the same events.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.slow_lan.peer_packages import hivemind_optimizer, torchft_diloco
from contract import environment
from trainer.config import TrainOptions
from trainer.data.batch import BatchRequest
from trainer.engine.optimization.optimizer import build_optimizer
from trainer.engine.optimization.schedule import learning_rate
from trainer.workloads.gpt2 import PRESETS, Gpt2

ALL_IN_ONE_MB = 2000


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Interface of a peer's sync method to the loop."""

    model: nn.Module
    step: Callable[[], None]
    """Step of the optimizer, and the peer's work after it."""
    close: Callable[[], None] = lambda: None


Build = Callable[[nn.Module, torch.optim.Optimizer, argparse.Namespace], Peer]


def ddp(model: nn.Module, optimizer: torch.optim.Optimizer, _: argparse.Namespace) -> Peer:
    return Peer(model=DistributedDataParallel(model, gradient_as_bucket_view=True), step=optimizer.step)


def fp16(model: nn.Module, optimizer: torch.optim.Optimizer, _: argparse.Namespace) -> Peer:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return Peer(model=wrapped, step=optimizer.step)


def powersgd(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Peer:
    """All gradients in one bucket: with several, the hook's collectives start in another order on each rank, and gloo
    aborts (pytorch/pytorch#58467)."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    wrapped = DistributedDataParallel(model, bucket_cap_mb=given.bucket_mb or ALL_IN_ONE_MB)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=given.rank, start_powerSGD_iter=given.warm
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return Peer(model=wrapped, step=optimizer.step)


def orch_hooks(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Peer:
    """The `ddp` above and one line of ours; the folder of the run is what tells `orch_hooks` that it is a rank."""
    import orch_hooks as hooks

    os.environ[environment.RUN_DIR] = str(given.run_dir)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return Peer(model=hooks.ddp(wrapped, given.hook_sync), step=optimizer.step)


def post_local_sgd(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Peer:
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    world = dist.get_world_size()
    alone = [dist.new_group([rank]) for rank in range(world)][dist.get_rank()]
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(
        PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=given.warm), post_localSGD_hook
    )
    averager = PeriodicModelAverager(period=given.every, warmup_steps=given.warm)
    together = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    return Peer(model=wrapped, step=together.step)


def torchft(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Peer:
    step, close = torchft_diloco(model, optimizer, given.every)
    return Peer(model=model, step=step, close=close)


def hivemind(model: nn.Module, optimizer: torch.optim.Optimizer, given: argparse.Namespace) -> Peer:
    step, close = hivemind_optimizer(optimizer, given.global_batch_size)
    return Peer(model=model, step=step, close=close)


PEERS: dict[str, Build] = {
    build.__name__.replace("_", "-"): build
    for build in (ddp, fp16, powersgd, orch_hooks, post_local_sgd, torchft, hivemind)
}


def main(argv: Sequence[str]) -> int:
    given = parse(argv)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    say("started")
    torch.manual_seed(given.seed)
    lab = PRESETS["lab"]
    options = TrainOptions(
        data_dir=given.data_dir, max_steps=given.max_steps, seed=given.seed, lr=lab.lr, warmup_steps=given.warmup_steps,
        eval_every=given.eval_every,
    )  # fmt: skip
    shape = {"layers": lab.layers, "heads": lab.heads, "width": lab.width, "seq_len": lab.seq_len}
    how = {"dropout": 0.0, "gradient_checkpointing": False, "loss_chunk": "auto"}
    workload = Gpt2(options, shape, how)
    optimizer = build_optimizer(workload.model, workload.parameter_groups(), options, torch.float32)
    dist.init_process_group("gloo")
    peer = PEERS[given.peer](workload.model, optimizer, given)
    say("joined", world_size=world)

    order, per_step = workload.order(given.seed), given.global_batch_size
    share = [round(per_step * part / world) for part in (rank, rank + 1)]
    tokens = workload.count_units(order.take(0, per_step))
    for step in range(1, given.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, given.max_steps, options)
        cursor = (step - 1) * per_step
        mine = order.take(cursor, per_step)[share[0] : share[1]]
        total = 0.0
        for start in range(0, len(mine), given.micro_batch_size):
            part = mine[start : start + given.micro_batch_size]
            batch = workload.batch(BatchRequest(split="train", indices=part, positions=part))
            model, more = peer.model, start + len(part) < len(mine)
            with model.no_sync() if more and isinstance(model, DistributedDataParallel) else nullcontext():
                loss = workload.loss_sums(model, batch).sum()
                (loss * world / tokens).backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(workload.model.parameters(), options.clip)
        peer.step()
        optimizer.zero_grad()
        if rank == 0:
            say("step", step=step, loss=total * world / tokens, ended_at=time.time())
    if given.eval_every and rank == 0:
        say("evaluation", step=given.max_steps, loss=validated(workload, given.micro_batch_size))
    dist.barrier()
    peer.close()
    say("done", step=given.max_steps)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may ask for Python when it is gone


@torch.no_grad()
def validated(workload: Gpt2, size: int) -> float:
    """Mean loss of a token on the whole validation split."""
    import numpy as np

    indices = np.arange(workload.validation_samples)
    parts = [indices[start : start + size] for start in range(0, len(indices), size)]
    workload.model.eval()
    total = sum(
        float(
            workload.loss_sums(
                workload.model, workload.batch(BatchRequest(split="validation", indices=part, positions=part))
            ).sum()
        )
        for part in parts
    )
    return total / workload.count_units(indices)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_lan.peer_rank", allow_abbrev=False)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--eval-every", type=int, default=0)
    for name in ("global-batch-size", "micro-batch-size", "max-steps", "seed", "warmup-steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rank", type=int, default=4, help="of PowerSGD's matrices")
    parser.add_argument("--hook-sync", default="auto", help="sync method of `orch_hooks.ddp`")
    parser.add_argument("--bucket-mb", type=int, default=0, help="of PowerSGD; 0: all in one")
    parser.add_argument("--every", type=int, default=10, help="local steps between averages")
    parser.add_argument("--warm", type=int, default=2, help="steps of plain DDP before PowerSGD or local steps begin")
    return parser.parse_known_args(argv)[0]


def say(event: str, **fields: Any) -> None:
    print("@orch " + json.dumps({"event": event, "t": time.time(), **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
