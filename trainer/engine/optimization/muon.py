"""torch's Muon, with matrices of one shape taken together and in the precision that the hardware computes fast.

torch.optim.Muon orthogonalises one matrix after another in bfloat16, which a CPU without instructions for it emulates
two hundred times slower than float32 (pytorch/pytorch#118499).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from trainer.engine.optimization.moment_formats import (
    BLOCK,
    EXPONENTS,
    FORMATS,
    MomentFormat,
    as_float32,
    in_blocks,
    rounding,
)

Matrices = list[tuple[Tensor, Tensor]]
"""Views of parameters, and the updates that they are to get."""


class Muon(torch.optim.Muon):
    """A group's `parts` says of how many matrices, one above the other, each of its parameters is made: queries, keys
    and values in one layer are three."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, dtype: torch.dtype, how: MomentFormat = FORMATS["fp32"]
    ) -> None:
        # Updates as large as AdamW's, so that both take the same rates and decay (Liu et al., arXiv 2502.16982).
        super().__init__([{"parts": 1, **group} for group in groups], lr=lr, adjust_lr_fn="match_rms_adamw")
        self._dtype, self.how = dtype, how

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # what a closure is for, the loop does itself
        for group in self.param_groups:
            alike: defaultdict[torch.Size, Matrices] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._with_momentum(parameter, group)
                    pairs = zip(parameter.chunk(group["parts"]), update.chunk(group["parts"]), strict=True)
                    for matrix, part in pairs:
                        alike[part.shape].append((matrix, part))
            for shape, matrices in alike.items():
                rate = group["lr"] * 0.2 * math.sqrt(max(shape))
                directions = orthogonal(torch.stack([part for _, part in matrices]).to(self._dtype), group)
                for (matrix, _), direction in zip(matrices, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction.to(matrix.dtype), alpha=-rate)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        theirs = state_dict["state"]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for parameter, entry in (
            (one, theirs[number]) for number, one in zip(numbers, parameters, strict=True) if number in theirs
        ):
            mean = as_float32(entry)["momentum_buffer"]
            if mean.shape != parameter.shape:
                raise ValueError(f"momentum of {tuple(mean.shape)}, and the parameter has {tuple(parameter.shape)}")
            step = torch.as_tensor(entry.get("step", 0.0)).to(parameter.device)
            self._keep(parameter, mean.to(parameter.device), step, torch.full((BLOCK,), 1 << 31))

    def _with_momentum(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None  # noqa: S101  # asked for where there is one
        kept = as_float32(state)["momentum_buffer"] if state else torch.zeros_like(parameter)
        mean: Tensor = kept.lerp_(gradient, 1 - group["momentum"])
        step = state.get("step", torch.zeros((), device=parameter.device)) + 1
        self._keep(parameter, mean, step, None)
        return gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean

    def _keep(self, parameter: Tensor, mean: Tensor, step: Tensor, chance: Tensor | None) -> None:
        """`chance`: how it is rounded; None: as `rounding` says at this step."""
        if self.how.name == "fp32":
            self.state[parameter] = {"momentum_buffer": mean}
            return
        drawn = rounding(step)[0] if chance is None else chance.to(mean.device)
        codes, exponents = self.how.encode(in_blocks(mean), drawn, squares=False)
        kept = {"step": step, "momentum_buffer": codes[: mean.numel()].view(mean.shape)}
        self.state[parameter] = kept if exponents is None else {**kept, "momentum_buffer" + EXPONENTS: exponents}


def orthogonal(matrices: Tensor, group: dict[str, Any]) -> Tensor:
    """Each of (count, rows, columns) with its singular values brought near 1: Newton and Schulz's iteration."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
