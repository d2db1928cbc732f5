"""Three ranks, each of which is fast at another precision: `torchrun … -m tests.trainer.mixed_ranks RUN_DIR SYNC`.

What a GPU would choose is put in place of what this CPU would; where there is a GPU, the first two ranks share it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.trainer.observed import Observed, Wishes
from trainer.agent import heartbeat
from trainer.config import RankInfo, TrainOptions
from trainer.data.batch import Batch
from trainer.engine import loop
from trainer.engine.hardware import device
from trainer.engine.setup import TrainingSetup

RANK = int(os.environ["RANK"])
DTYPE = (torch.bfloat16, torch.float16, torch.float32)[RANK]
OVERFLOWS_AT = 2


class Overflowing(Observed):
    """Model that in one step has a gradient too large for float16."""

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        if not self.model.up.weight._backward_hooks:
            self.model.up.weight.register_hook(self._overflow)
        return super().loss_sums(model, batch)

    def _overflow(self, gradient: Tensor) -> Tensor | None:
        overflows = DTYPE is torch.float16 and heartbeat._activity.step == OVERFLOWS_AT
        return torch.full_like(gradient, torch.inf) if overflows else None


def main(run_dir: Path, sync: str) -> int:
    if RANK == 2:
        torch.cuda.is_available = lambda: False
    device.choose_dtype = lambda *_, **__: (DTYPE, "as that GPU would")  # type: ignore[assignment]
    usual = loop._loop

    def reported(begun: TrainingSetup | None) -> None:
        usual(begun)
        assert begun is not None
        weights = [parameter.detach().cpu() for parameter in begun.run.workload.model.parameters()]
        end = {
            "dtype": str(DTYPE).removeprefix("torch."),
            "scale": begun.trained.scaler.get_scale(),
            "weights": sum(float(tensor.double().sum()) for tensor in weights),
            "norm": float(torch.cat([tensor.flatten() for tensor in weights]).norm()),
        }
        sys.stdout.write(f"end {json.dumps(end)}\n")

    loop._loop = reported
    options = TrainOptions(
        run_dir=run_dir, max_steps=8, lr=0.05, warmup_steps=0, schedule="constant", sync=sync, sync_every=4,
        shares="equal", compile=False, num_workers=0, precision="fp16", checkpoint_every=0, log_every=1, batch_size=4,
    )  # fmt: skip
    place = replace(RankInfo.from_environ(os.environ), node=f"node-{RANK}", local_world_size=1)
    return loop.train(lambda: Overflowing(options, Wishes(), place), options, place)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
