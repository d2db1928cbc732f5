"""Training of a user's script with `orch_hooks`, told by rank 0: `… -m tests.trainer.hooked_ranks FOLDER [DEVICE]`."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import orch_hooks as hooks

DEVICE = "cpu"
METHODS = ("fp32", "fp16", "int8", "int4+8", "int4", "int2", "topk", "powersgd")


def train(prepare: Callable[[DistributedDataParallel], nn.Module], steps: int = 6) -> tuple[list[float], Tensor]:
    """Losses of this rank, and the weights at the end. The weights are drawn from one seed, the samples by rank."""
    torch.manual_seed(1)
    # A first bucket of 1 MiB, and a second one: DDP cuts them again after the first step.
    net = nn.Sequential(nn.Linear(40, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 4)).to(DEVICE)
    model = prepare(DistributedDataParallel(net, bucket_cap_mb=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    chance = torch.Generator().manual_seed(10 + dist.get_rank())
    x, y = torch.randn(16, 40, generator=chance).to(DEVICE), torch.randn(16, 4, generator=chance).to(DEVICE)
    losses = []
    for step in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        hooks.step(step + 1, loss=loss, samples=32)
    return losses, torch.cat([parameter.detach().flatten().cpu() for parameter in net.parameters()])


def spread(weights: Tensor) -> float:
    """The largest difference between two ranks' weights."""
    rows = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, weights)
    return max(float((row - rows[0]).abs().max()) for row in rows)


def refusal(sync: str, model: Any) -> str:
    try:
        hooks.ddp(model, sync)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def in_two_levels(folder: Path) -> dict[str, Any]:
    """Several ranks on each of several nodes."""
    os.environ["ORCH_RUN_DIR"] = str(folder / "run")
    dist.init_process_group("gloo")
    losses, _ = train(lambda model: model)
    found: dict[str, Any] = {"plain loss": losses[-1]}
    for name in METHODS[1:]:
        saved: list[nn.Module] = []

        def hooked(model: DistributedDataParallel, name: str = name, saved: list[nn.Module] = saved) -> nn.Module:
            saved.append(hooks.ddp(model, name, density=0.1))
            return saved[0]

        own, ended = train(hooked)
        means = [one for one in gc.get_objects() if type(one).__name__ == "InNodes"]  # of the private copy of our code
        found[name] = {
            "loss": own[-1],
            "first steps": own[:2] == losses[:2],
            "spread": spread(ended),
            "shards": [(one._shard, one._count) for one in means],
        }
        saved.clear()
        del means
        gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return found


def main(folder: Path) -> dict[str, Any]:
    # Each rank is a node of its own, with a folder of its own.
    os.environ["ORCH_RUN_DIR"] = str(folder / f"node-{os.environ['RANK']}")
    os.environ["LOCAL_RANK"] = "0"
    found: dict[str, Any] = {"resumed before": hooks.resume()}
    dist.init_process_group("gloo")
    plain = train(lambda model: model)
    for name in METHODS:
        losses, weights = train(lambda model, name=name: hooks.ddp(model, name, density=0.1))
        found[name] = {
            "same bits": losses == plain[0] and torch.equal(weights, plain[1]),
            "first steps": losses[:2] == plain[0][:2],
            "loss": losses[-1],
            "plain loss": plain[0][-1],
            "spread": spread(weights),
        }
    model = DistributedDataParallel(nn.Linear(3, 3))
    found["refused"] = {name: refusal(name, model) for name in ("local", "diloco", "bf16")}
    found["not ddp"] = refusal("int8", nn.Linear(3, 3))
    written = folder / "mine.pt"
    if dist.get_rank() == 0:
        written.write_bytes(bytes(range(256)) * 100)
        hooks.checkpoint(written)
    dist.barrier()
    paths = [Path(hooks.resume() or "") for _ in range(2)]  # the second time it is there
    lengths = torch.tensor([path.stat().st_size for path in paths])
    dist.all_reduce(lengths)
    found["resumed"] = [str(paths[0].relative_to(os.environ["ORCH_RUN_DIR"])), lengths.tolist()]
    auto = train(lambda model: hooks.ddp(model), steps=3)
    found["auto spread"] = spread(auto[1])
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    DEVICE = sys.argv[2] if len(sys.argv) > 2 else DEVICE
    one_node = os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]
    result = (main if one_node else in_two_levels)(Path(sys.argv[1]))
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may outlive Python
