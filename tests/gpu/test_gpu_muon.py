"""Muon with its matrices on a GPU."""

from __future__ import annotations

import torch

from trainer.engine.optimization.muon import Muon


def muon() -> Muon:
    torch.manual_seed(0)
    parameters = [torch.randn(768, columns, device="cuda", requires_grad=True) for columns in (768, 3072)]
    return Muon([{"params": parameters}], 0.02, torch.bfloat16)


def test_the_gpu_skips_a_step() -> None:
    made = muon()
    parameters = made.param_groups[0]["params"]
    before = [parameter.detach().clone() for parameter in parameters]
    for void in (True, False):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * (float("nan") if void else 1.0)
        made.found_inf = torch.tensor(float(void), device="cuda")  # type: ignore[attr-defined]  # as GradScaler gives it
        made.step()
        stayed = [torch.equal(now, then) for now, then in zip(parameters, before, strict=True)]
        assert stayed == [void, void]
        assert all(parameter.isfinite().all() for parameter in parameters)
