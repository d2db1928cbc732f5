"""AdamW and SGD whose moments take less memory, in fewer bits.

Weights are updated part by part: a part's moments are decoded, used in float32 and encoded again, so that only one part
of them is in float32 at a time. A part is as large as a GPU needs to be busy, and all of them go through one function,
which torch.compile makes one or two kernels of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainer.data.to_device import to_device
from trainer.engine.hardware import compiling
from trainer.engine.optimization.moment_formats import (
    BLOCK,
    EXPONENTS,
    SQUARES,
    MomentFormat,
    as_float32,
    format_of,
    in_blocks,
    padded,
    rounding,
)

PART = {"cpu": 1 << 17}
"""Values that are updated together on a CPU, whose caches hold them."""
PART_ON_GPU = 1 << 22
_NEAREST = 1 << 31
Rule = Callable[[Tensor, Tensor, Sequence[Tensor], Tensor, Tensor], tuple[Tensor, list[Tensor]]]
"""Weights, gradients, moments, settings and step to new weights and moments, all in float32."""


def adamw(p: Tensor, g: Tensor, moments: Sequence[Tensor], s: Tensor, step: Tensor) -> tuple[Tensor, list[Tensor]]:
    lr, decay, eps, keep_1, keep_2, log_1, log_2 = s.unbind()
    mean = moments[0] + (g - moments[0]) * (1 - keep_1)
    square = moments[1] * keep_2 + g * g * (1 - keep_2)
    correction_1, correction_2 = -torch.expm1(step * log_1), -torch.expm1(step * log_2)
    root = (square / correction_2).sqrt() + eps
    return p * (1 - lr * decay) - (lr / correction_1) * (mean / root), [mean, square]


def nesterov(p: Tensor, g: Tensor, moments: Sequence[Tensor], s: Tensor, _step: Tensor) -> tuple[Tensor, list[Tensor]]:
    lr, decay, keep = s.unbind()
    g = g + decay * p
    mean = moments[0] * keep + g
    return p - lr * (g + keep * mean), [mean]


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    rule: Rule
    moments: tuple[str, ...]
    """Moments as torch's optimizer of this kind names them."""
    settings: Callable[[Mapping[str, Any]], list[float]]
    """Numbers of a parameter group that `rule` reads."""


def _adamw_settings(group: Mapping[str, Any]) -> list[float]:
    first, second = group["betas"]
    logs = [math.log(beta) if beta else -100.0 for beta in (first, second)]
    return [group["lr"], group["weight_decay"], group["eps"], first, second, *logs]


ADAMW = OptimizerKind(rule=adamw, moments=("exp_avg", "exp_avg_sq"), settings=_adamw_settings)
SGD_NESTEROV = OptimizerKind(
    rule=nesterov,
    moments=("momentum_buffer",),
    settings=lambda group: [group["lr"], group["weight_decay"], group["momentum"]],
)


class UpdateRecipe(NamedTuple):
    rule: Rule
    how: MomentFormat
    names: tuple[str, ...]


class StepNumbers(NamedTuple):
    """Alike for all parts of a group in a step, all on the device."""

    settings: Tensor
    step: Tensor
    void: Tensor
    """0, or the weights and moments stay."""
    chances: tuple[Tensor, Tensor]
    """Result of `rounding`."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Values `start` to `end` of a parameter, which lie at `at` in their part."""

    parameter: Tensor
    start: int
    end: int
    at: int

    def read(self, tensor: Tensor | None) -> Tensor:
        """These values of a tensor like the parameter."""
        assert tensor is not None  # noqa: S101  # asked for where there is one
        return tensor if self._whole else tensor.reshape(-1)[self.start : self.end]

    def target(self) -> Tensor:
        """The parameter's memory of these values."""
        weights = self.parameter.detach()
        return weights if self._whole else weights.view(-1)[self.start : self.end]

    def within(self, part: Tensor) -> Tensor:
        """These values in a tensor of their part, in the shape of `read` and `target`."""
        values = part[self.at : self.at + self.end - self.start]
        return values.view(self.parameter.shape) if self._whole else values

    @property
    def _whole(self) -> bool:
        return not self.parameter.is_contiguous()


@dataclass(frozen=True, kw_only=True)
class Part:
    first: int
    last: int
    """First and last position of the part in the moments of the whole group."""
    pieces: tuple[Piece, ...]

    @property
    def learning(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.parameter.grad is not None]


class GroupMoments:
    """Moments of all parameters of a group, one after another, each from the start of a block on."""

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str], how: MomentFormat) -> None:
        self.parameters = parameters
        device = parameters[0].device
        self.starts = [0]
        for one in parameters:
            self.starts.append(self.starts[-1] + padded(one.numel()))
        size = self.starts[-1]
        self.step = torch.zeros((), device=device)
        self.codes = {name: torch.zeros(size, dtype=how.dtype, device=device) for name in names}
        self.exponents = {
            name: torch.zeros(size // BLOCK, dtype=torch.uint8, device=device) for name in names if how.name == "int8"
        }
        ends = self._ends(PART.get(device.type, PART_ON_GPU))
        self.parts = [self._part(first, last) for first, last in pairwise([0, *ends])]

    def _ends(self, most: int) -> list[int]:
        """Ends of the parts: of `most` values each, but what has no order of its values in memory is not cut."""
        ends = [0]
        for parameter, start, end in zip(self.parameters, self.starts, self.starts[1:], strict=False):
            if not parameter.is_contiguous() and end - ends[-1] > most:
                ends += [start, end]
            while end - ends[-1] > most:
                ends.append(ends[-1] + most)
        return sorted({*ends, self.starts[-1]} - {0})

    def _part(self, first: int, last: int) -> Part:
        pieces = []
        for parameter, begins in zip(self.parameters, self.starts, strict=False):
            start, end = max(first, begins) - begins, min(last - begins, parameter.numel())
            if start < end:
                pieces.append(Piece(parameter=parameter, start=start, end=end, at=begins + start - first))
        return Part(first=first, last=last, pieces=tuple(pieces))

    def entry(self, number: int) -> dict[str, Tensor]:
        """State of a parameter, as a checkpoint has it: views of the group's."""
        parameter, start = self.parameters[number], self.starts[number]
        found = {"step": self.step}
        for name, codes in self.codes.items():
            found[name] = codes[start : start + parameter.numel()].view(parameter.shape)
        for name, exponents in self.exponents.items():
            found[name + EXPONENTS] = exponents[start // BLOCK : self.starts[number + 1] // BLOCK]
        return found

    def tensors(self, part: Part) -> list[Tensor]:
        """Codes of each moment, then the exponents of each."""
        codes = [one[part.first : part.last] for one in self.codes.values()]
        return codes + [one[part.first // BLOCK : part.last // BLOCK] for one in self.exponents.values()]


class CompactOptimizer(Optimizer):
    """`compiled`: the update by torch.compile; where that fails, as without it. A parameter without a gradient is left
    as it is."""

    _step_supports_amp_scaling = True
    found_inf: Tensor
    grad_scale: Tensor | None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        kind: OptimizerKind,
        defaults: dict[str, Any],
        how: MomentFormat,
        *,
        compiled: bool = False,
    ) -> None:
        super().__init__(groups, defaults)
        self.kind, self.how = kind, how
        self._update = torch.compile(_update, dynamic=True) if compiled else _update
        self._compiled = compiled
        self._moments: list[GroupMoments | None] = []

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # what a closure is for, the loop does itself
        if all(one.grad is None for one in self._parameters()):
            return
        for group, moments in zip(self.param_groups, self._made(), strict=True):
            if moments is not None and any(one.grad is not None for one in moments.parameters):
                self._step_group(group, moments)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load its own format bit by bit; another is decoded, and encoded to the nearest."""
        theirs = state_dict["state"]
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._moments = []
        if not theirs:
            return
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        saved = {
            parameter: theirs[number]
            for number, parameter in zip(numbers, self._parameters(), strict=True)
            if number in theirs
        }
        same = format_of(theirs) == self.how.name
        self._made()
        for parameter, entry in saved.items():
            own = self.state[parameter]
            for name, value in (entry if same else self._encoded(as_float32(entry), own)).items():
                if name == "step":
                    own[name].fill_(float(value))
                elif isinstance(value, Tensor):
                    own[name].copy_(value)

    def _parameters(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _encoded(self, entry: Mapping[str, Any], own: Mapping[str, Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {name: value for name, value in entry.items() if name == "step"}
        for name in self.kind.moments:
            value = entry.get(name)
            if value is None:  # SGD before its first step
                continue
            if value.shape != own[name].shape:
                raise ValueError(f"{name} of {tuple(value.shape)}, and the parameter has {tuple(own[name].shape)}")
            nearest = torch.full((BLOCK,), _NEAREST)
            codes, exponents = self.how.encode(in_blocks(value.float().cpu()), nearest, squares=name in SQUARES)
            found[name] = codes[: value.numel()].view(value.shape)
            if exponents is not None:
                found[name + EXPONENTS] = exponents
        return found

    def _made(self) -> list[GroupMoments | None]:
        """Moments of each group, zero in the beginning and after what emptied `state`; None where nothing learns."""
        made = [moments for moments in self._moments if moments is not None]
        if not made or any(one not in self.state for moments in made for one in moments.parameters):
            self._moments = [self._of_group(group) for group in self.param_groups]
        return self._moments

    def _of_group(self, group: Mapping[str, Any]) -> GroupMoments | None:
        learning = [one for one in group["params"] if one.requires_grad]
        if not learning:
            return None
        made = GroupMoments(learning, self.kind.moments, self.how)
        self.state.update({one: made.entry(number) for number, one in enumerate(learning)})
        return made

    def _step_group(self, group: Mapping[str, Any], moments: GroupMoments) -> None:
        device = moments.step.device
        void = getattr(self, "found_inf", None)
        void = torch.zeros((), device=device) if void is None else void.reshape(()).to(device)
        scale = getattr(self, "grad_scale", None)
        moments.step += 1 - (void != 0).float()
        settings = to_device(self.kind.settings(group), device)
        numbers = StepNumbers(settings, moments.step, void, rounding(moments.step))
        workspace = _Workspace(moments, device)
        for part in moments.parts:
            weights, gradients = workspace.read(part)
            if scale is not None:
                gradients /= scale
            self._run(weights, gradients, moments.tensors(part), numbers)
            workspace.write(part, weights)

    def _run(self, weights: Tensor, gradients: Tensor, tensors: list[Tensor], numbers: StepNumbers) -> None:
        recipe = UpdateRecipe(self.kind.rule, self.how, self.kind.moments)
        try:
            self._update(recipe, weights, gradients, tensors, numbers)
        except Exception as error:
            if not self._compiled or not compiling.is_of_the_compiler(error):
                raise
            self._compiled, self._update = False, _update  # it fails before anything has been computed
            _update(recipe, weights, gradients, tensors, numbers)


def _update(
    recipe: UpdateRecipe, weights: Tensor, gradients: Tensor, tensors: Sequence[Tensor], numbers: StepNumbers
) -> None:
    """Change `weights` and `tensors` (codes, then exponents) in place, unless `void` is not 0."""
    how, squares = recipe.how, [name in SQUARES for name in recipe.names]
    count = len(recipe.names)
    codes = tensors[:count]
    exponents: list[Tensor | None] = [*tensors[count:]] or [None] * count
    moments = [how.decode(one, over, squares=s) for one, over, s in zip(codes, exponents, squares, strict=True)]
    new_weights, new_moments = recipe.rule(weights, gradients, moments, numbers.settings, numbers.step)
    skip = numbers.void != 0
    weights.copy_(torch.where(skip, weights, new_weights))
    for number, moment in enumerate(new_moments):
        made, above = how.encode(moment, numbers.chances[number], squares=squares[number])
        codes[number].copy_(torch.where(skip, codes[number], made))
        held = exponents[number]
        if held is not None and above is not None:
            held.copy_(torch.where(skip, held, above))


class _Workspace:
    """Weights and gradients of a part, in the order of its moments."""

    def __init__(self, moments: GroupMoments, device: torch.device) -> None:
        size = max(part.last - part.first for part in moments.parts)
        self._weights, self._gradients = torch.zeros(2, size, device=device)

    def read(self, part: Part) -> tuple[Tensor, Tensor]:
        count, learning = part.last - part.first, part.learning
        if len(part.pieces) == len(learning) == 1 and (memory := _own_memory(learning[0], count)):
            return memory
        weights, gradients = self._weights[:count], self._gradients[:count]
        gradients.zero_()
        if learning:
            torch._foreach_copy_([one.within(weights) for one in learning], [one.target() for one in learning])
            read = [one.read(one.parameter.grad) for one in learning]
            torch._foreach_copy_([one.within(gradients) for one in learning], read)
        return weights, gradients

    def write(self, part: Part, weights: Tensor) -> None:
        """Put back what `read` has copied."""
        if weights.data_ptr() == self._weights.data_ptr() and part.learning:
            targets = [one.target() for one in part.learning]
            torch._foreach_copy_(targets, [one.within(weights) for one in part.learning])


def _own_memory(piece: Piece, count: int) -> tuple[Tensor, Tensor] | None:
    """Return weights and gradients without a copy, if the part consists of this piece alone."""
    weights, gradient = piece.parameter.detach(), piece.parameter.grad
    plain = gradient is not None and weights.is_contiguous() and gradient.is_contiguous()
    if not plain or gradient is None or piece.end - piece.start != count or weights.dtype is not torch.float32:
        return None
    return piece.target(), piece.read(gradient)
