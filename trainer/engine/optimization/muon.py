"""torch's Muon, with matrices of one shape taken together and in the precision that the hardware computes fast.

torch.optim.Muon orthogonalises one matrix after another in bfloat16, which a CPU without instructions for it emulates
two hundred times slower than float32 (pytorch/pytorch#118499).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
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

    _step_supports_amp_scaling = True
    """Takes `found_inf`, as torch's fused optimizers do: where it is not 0, the device skips the update."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, dtype: torch.dtype, how: MomentFormat = FORMATS["fp32"]
    ) -> None:
        # Updates as large as AdamW's, so that both take the same rates and decay (Liu et al., arXiv 2502.16982).
        super().__init__([{"parts": 1, **group} for group in groups], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.dtype, self.how = dtype, how

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # what a closure is for, the loop does itself
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        void = None if found_inf is None else (found_inf != 0).reshape(())
        for group in self.param_groups:
            alike: defaultdict[torch.Size, Matrices] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._with_momentum(parameter, group, void)
                    pairs = zip(parameter.chunk(group["parts"]), update.chunk(group["parts"]), strict=True)
                    for matrix, part in pairs:
                        alike[part.shape].append((matrix, part))
            for matrices in alike.values():
                directions = orthogonal(torch.stack([part for _, part in matrices]).to(self.dtype), group)
                for (matrix, _), direction in zip(matrices, directions, strict=True):
                    _move(matrix, direction, group, void)

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
            self.state[parameter] = self._encoded(mean.to(parameter.device), step, torch.full((BLOCK,), 1 << 31))

    def _with_momentum(self, parameter: Tensor, group: dict[str, Any], void: Tensor | None) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101  # asked for where there is one
        exact = self.how.name == "fp32"
        zero = torch.zeros((), device=parameter.device)
        before = self.state[parameter] or self._encoded(torch.zeros_like(parameter), zero, None)
        mean: Tensor = (before if exact else as_float32(before))["momentum_buffer"]
        step = before.get("step", zero) + 1
        if void is None:
            encoded = self._encoded(mean.lerp_(gradient, 1 - group["momentum"]), step, None)
        else:
            mean.copy_(torch.where(void, mean, mean.lerp(gradient, 1 - group["momentum"])))
            encoded = self._encoded(mean, step, None)
            if not exact:  # to encode what was decoded would round it again
                encoded = {name: torch.where(void, before[name], new) for name, new in encoded.items()}
        self.state[parameter] = encoded
        return gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean

    def _encoded(self, mean: Tensor, step: Tensor, chance: Tensor | None) -> dict[str, Tensor]:
        """State of a parameter. `chance`: how its momentum is rounded; None: as `rounding` says at this step."""
        if self.how.name == "fp32":
            return {"momentum_buffer": mean}
        drawn = rounding(step)[0] if chance is None else chance.to(mean.device)
        codes, exponents = self.how.encode(in_blocks(mean), drawn, squares=False)
        encoded = {"step": step, "momentum_buffer": codes[: mean.numel()].view(mean.shape)}
        return encoded if exponents is None else {**encoded, "momentum_buffer" + EXPONENTS: exponents}


def _move(matrix: Tensor, direction: Tensor, group: Mapping[str, Any], void: Tensor | None) -> None:
    """The same bits with `void` that is false as without it."""
    keeps, rate = 1 - group["lr"] * group["weight_decay"], group["lr"] * 0.2 * math.sqrt(max(matrix.shape))
    if void is None:
        matrix.mul_(keeps).add_(direction.to(matrix.dtype), alpha=-rate)
    else:
        moved = (matrix * keeps).add_(direction.to(matrix.dtype), alpha=-rate)
        matrix.copy_(torch.where(void, matrix, moved))


def newton_schulz(x: Tensor, eps: float, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Each of (count, rows, columns), no more rows than columns, with its singular values brought near 1."""
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    a, b, c = coefficients
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def orthogonal(matrices: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Each of (count, rows, columns) with its singular values brought near 1: Newton and Schulz's iteration."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = newton_schulz(matrices.mT if tall else matrices, group["eps"], group["ns_coefficients"], group["ns_steps"])
    return x.mT if tall else x
