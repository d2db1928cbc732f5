"""Ranks of unequal speed whose batches follow it: `… -m tests.trainer.shared_ranks FOLDER SYNC WORKERS SECONDS…`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import orch_hooks as hooks

SAMPLES, BATCH, EPOCHS = 320, 8, 3


class Slow(nn.Module):
    """A linear model that takes this many seconds for each sample in training."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.line, self.sample_s = nn.Linear(6, 1), sample_s

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(len(x) * self.sample_s)
        out: Tensor = self.line(x)
        return out


def data() -> TensorDataset:
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 6, generator=chance)
    return TensorDataset(x, x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, generator=chance))


def train(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> tuple[list[int], list[float]]:
    """Sizes of this rank's batches, and the weights at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sizes = []
    for epoch in range(EPOCHS):
        loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]  # ours has one
        for x, y in loader:
            sizes.append(len(x))
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    return sizes, torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def main(folder: str, sync: str, workers: int, sample_s: list[float]) -> dict[str, object]:
    os.environ["ORCH_RUN_DIR"] = str(Path(folder) / f"node-{os.environ['RANK']}")
    dist.init_process_group("gloo")
    batches = hooks.batch_sampler(data(), BATCH, seed=3)
    model = hooks.ddp(DistributedDataParallel(Slow(sample_s[dist.get_rank()])), sync, batches=batches)
    sizes, weights = train(model, DataLoader(data(), batch_sampler=batches, num_workers=workers))
    everyone: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, sizes)
    return {"sizes": everyone, "weights": weights}


if __name__ == "__main__":
    result = main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [float(word) for word in sys.argv[4:]])
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may outlive Python
