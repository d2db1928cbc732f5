"""Error feedback under a loss scale that changes between steps, as that of float16 does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer.config import RankInfo, TrainOptions
from trainer.engine.autotune.measure import Echo
from trainer.engine.optimization.optimizer import LossScaler
from trainer.engine.sync import methods
from trainer.engine.sync.strategy import State

STEPS = 5
CPU = torch.device("cpu")


def averaged(method: str, scales: list[float]) -> tuple[list[Tensor], State]:
    """Gradients of each step without the scale, after the exchange, and what the method keeps at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 1))
    group = Echo(place=RankInfo(rank=0, world_size=2), backend="none", device=CPU)
    scaler = LossScaler("cpu", init_scale=scales[0] if scales else 1.0, enabled=bool(scales))
    context = methods.SyncContext(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        options=TrainOptions(run_dir=Path()),
        group=group,
        loss_scale=scaler.on_device,
    )
    sync, found = methods.build(method, context, 0, static_graph=False), []
    for step in range(STEPS):
        if scales:
            scaler.update(scales[step]) if step else None
        with sync.gradients(last=True):
            scaler.scale(
                model(torch.randn(8, 40, generator=torch.Generator().manual_seed(step))).square().mean()
            ).backward()  # type: ignore[no-untyped-call]  # torch's own gap
        sync.finish()
        scaler.unscale_(context.optimizer)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        context.optimizer.zero_grad()
    saved = dict(sync.state())
    sync.close()
    return found, saved


@pytest.mark.parametrize("method", ["fp16", "int8", "int4", "int2", "topk", "powersgd"])
def test_what_is_left_over_counts_alike_whatever_the_scale_becomes(method: str) -> None:
    plain, plain_saved = averaged(method, [])
    scaled, scaled_saved = averaged(method, [2.0**16, 2.0**17, 2.0**15, 2.0**15, 2.0**4])
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert plain_saved.keys() == scaled_saved.keys()
    for name in plain_saved:
        torch.testing.assert_close(scaled_saved[name], plain_saved[name], rtol=0, atol=0)
    assert any(bool(saved.any()) for saved in plain_saved.values())
