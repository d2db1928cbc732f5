"""Muon's matrices shared by the ranks of a node, against each rank computing all, told by rank 0:
`torchrun … -m tests.trainer.muon_ranks [cpu|cuda]`."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.observed import same
from tests.trainer.one_queue import alike
from trainer.config import RankInfo, TrainOptions
from trainer.engine.autotune.measure import optimizer_s
from trainer.engine.group import Group
from trainer.engine.optimization.muon import Muon
from trainer.engine.optimization.optimizer import LossScaler, build_optimizer
from trainer.engine.optimization.shared_muon import SharedMuon, muon_of, share_if_faster
from trainer.engine.process_group import leave
from trainer.models.gpt2 import GPT2, Gpt2Shape

DEVICE = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
SHAPE = Gpt2Shape(layers=5, heads=2, width=48, seq_len=8, vocab_size=50)


class Counting(Muon):
    """Counts the matrices that this rank makes orthogonal."""

    count = 0

    def orthogonal(self, matrices, group):  # type: ignore[no-untyped-def]  # as Muon
        self.count += len(matrices)
        return super().orthogonal(matrices, group)


class Training:
    def __init__(self, group: Group | None, dtype: torch.dtype) -> None:
        """`group`: of the ranks that share matrices; None: none do."""
        torch.manual_seed(0)
        self.model = GPT2(SHAPE).to(DEVICE)
        options = TrainOptions(optimizer="muon", lr=1e-2)
        groups = self.model.parameter_groups(options.weight_decay)
        self.optimizer = build_optimizer(self.model, groups, options, dtype)
        muon = muon_of(self.optimizer)
        assert muon
        muon.__class__ = Counting
        self.muon = muon
        if group:
            muon.start = SharedMuon(muon, group).start

    def step(self, number: int) -> None:
        """By the same gradients on all ranks; those of every third step are not finite."""
        tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(number)).to(DEVICE)
        loss = self.model(tokens[:, :-1], tokens[:, 1:]) / 16
        (loss * (float("nan") if number % 3 == 1 else 1.0)).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        LossScaler(DEVICE, enabled=False).step_unless(~norm.isfinite(), self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)

    def steps(self, numbers: Sequence[int]) -> Training:
        for number in numbers:
            self.step(number)
        return self

    def continued(self, group: Group, dtype: torch.dtype) -> Training:
        """Another training from this one's checkpoint."""
        other = Training(group, dtype)
        other.model.load_state_dict(self.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other


def compare(group: Group, dtype: torch.dtype) -> dict[str, object]:
    by_itself, shared = Training(None, dtype), Training(group, dtype)
    before = copy.deepcopy(shared.model.state_dict())
    shared.steps([1])
    skipped = same(shared.model.state_dict(), before)
    shared.steps(range(2, 6))
    by_itself.steps(range(1, 6))
    return {
        "skipped": skipped,
        "learnt": not same(shared.model.state_dict(), before),
        "as by itself": same(shared.model.state_dict(), by_itself.model.state_dict()),
        "state": same(shared.optimizer.state_dict()["state"], by_itself.optimizer.state_dict()["state"]),
        "continued": same(
            shared.continued(group, dtype).steps(range(6, 9)).model.state_dict(),
            by_itself.steps(range(6, 9)).model.state_dict(),
        ),
        "alike": alike(list(shared.model.parameters()), group),
        "computed": group.all_gather_scalar(shared.muon.count),
        "all": by_itself.muon.count * 5 / 8,
    }


def measured(group: Group) -> dict[str, object]:
    """Matrices of this rank in the measurement of an optimizer step, where the last rank is slow."""
    training = Training(group, torch.float32)
    steps: list[int] = []

    def counted(*_: object) -> None:
        steps.append(1)
        time.sleep(0.02 * (group.place.rank == group.place.world_size - 1))

    training.optimizer.register_step_pre_hook(counted)
    seconds = optimizer_s(training.model, training.optimizer, group)
    whole = 6 * SHAPE.layers  # queries, keys and values are three matrices
    return {
        "computed": group.all_gather_scalar(training.muon.count),
        "steps": group.all_gather_scalar(len(steps)),
        "all": whole * len(steps),
        "seconds": seconds,
    }


def main() -> int:
    place = RankInfo.from_environ(os.environ)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = Group(place=place, backend="gloo", device=torch.device("cpu")).aware_of_nodes()
    told = {str(dtype): compare(group, dtype) for dtype in (torch.float32, torch.bfloat16)}
    muon = Training(None, torch.float32).muon
    decided, why = share_if_faster(muon, group)
    again, _ = share_if_faster(muon, group, before=True)
    told["measured"] = measured(group)
    told["trial"] = {"agreed": len(set(group.all_gather_scalar(float(decided)))) == 1, "why": why, "again": again}
    if place.rank == 0:
        sys.stdout.write(json.dumps(told) + "\n")
    group.barrier()
    return leave(place, 0)


if __name__ == "__main__":
    sys.exit(main())
