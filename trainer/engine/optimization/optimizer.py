"""Optimizer of the weights: AdamW, SGD, or Muon for the matrices with AdamW for all else.

One object, whatever is inside: the loop sets the rates of its `param_groups`, a checkpoint keeps its `state_dict`, and
resuming goes over its `state`. A group's `lr_scale` is its own rate in proportion to --lr.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from trainer.config import TrainOptions
from trainer.engine.hardware import compiling
from trainer.engine.optimization.compact import ADAMW, SGD_NESTEROV, CompactOptimizer
from trainer.engine.optimization.moment_formats import FORMATS, as_float32, format_of
from trainer.engine.optimization.muon import Muon
from trainer.errors import OptionError

MOMENTUM = 0.9
"""Momentum of SGD."""
Groups = list[dict[str, Any]]


def build_optimizer(model: nn.Module, groups: Groups | None, options: TrainOptions, dtype: torch.dtype) -> Optimizer:
    """`groups`: the workload's, None for the usual. In each, `lr_scale` is its own rate in proportion to --lr, and
    `muon` says that it holds hidden matrices. `dtype`: in which the hardware multiplies matrices fast."""
    given = usual_groups(model, options.weight_decay) if groups is None else groups
    hidden: Groups = []
    others: Groups = []
    for group in given:
        own = {"lr_scale": 1.0, "weight_decay": options.weight_decay, **group}
        own["lr"] = options.lr * own["lr_scale"]
        for_muon = own.pop("muon", False) and options.optimizer == "muon"
        (hidden if for_muon else others).append(own)
    if options.optimizer == "muon" and not hidden:
        raise OptionError("--optimizer muon: this model has no hidden matrices, which Muon is for: give adamw")
    how = FORMATS[options.optimizer_state]
    if how.name != "fp32":
        return _compact(hidden, others, options, dtype)
    # One pass over the weights instead of a dozen; on a CPU, too, it takes a fraction of the time.
    fused = True if options.fused is None else options.fused
    if options.optimizer == "sgd":
        return SGD(others, lr=options.lr, momentum=MOMENTUM, nesterov=True, fused=fused)
    adamw = AdamW(others, lr=options.lr, betas=options.betas, fused=fused) if others else None
    if not hidden:
        assert adamw is not None  # noqa: S101  # a model has parameters
        return adamw
    muon = Muon(hidden, options.lr, dtype)
    return CombinedOptimizer([muon, adamw]) if adamw else muon


def _compact(hidden: Groups, others: Groups, options: TrainOptions, dtype: torch.dtype) -> Optimizer:
    """The same rules, with moments in fewer bits."""
    how = FORMATS[options.optimizer_state]
    device = next(chain.from_iterable(group["params"] for group in hidden + others)).device
    worth_it = options.compile is True if device.type == "cpu" else options.compile is not False
    compiled = worth_it and not options.deterministic and not compiling.missing_requirement(device)
    if options.optimizer == "sgd":
        defaults: dict[str, Any] = {"lr": options.lr, "momentum": MOMENTUM}
        return CompactOptimizer(others, SGD_NESTEROV, defaults, how, compiled=compiled)
    defaults = {"lr": options.lr, "betas": options.betas, "eps": 1e-8}
    adamw = CompactOptimizer(others, ADAMW, defaults, how, compiled=compiled) if others else None
    if not hidden:
        assert adamw is not None  # noqa: S101  # a model has parameters
        return adamw
    muon = Muon(hidden, options.lr, dtype, how)
    return CombinedOptimizer([muon, adamw]) if adamw else muon


def load_optimizer(optimizer: Optimizer, state_dict: dict[str, Any]) -> str:
    """Continue from a checkpoint's state, in whatever format; return what was converted, empty if nothing was."""
    parts = optimizer.parts if isinstance(optimizer, CombinedOptimizer) else [optimizer]
    (wanted,) = {part.how.name if isinstance(part, CompactOptimizer | Muon) else "fp32" for part in parts}
    found = format_of(state_dict["state"])
    if found != wanted:
        decoded = {number: as_float32(entry) for number, entry in state_dict["state"].items()}
        if isinstance(optimizer, SGD):  # torch's counts no steps
            decoded = {number: {"momentum_buffer": entry["momentum_buffer"]} for number, entry in decoded.items()}
        groups = zip(optimizer.param_groups, state_dict["param_groups"], strict=True)
        filled = [{**{key: value for key, value in own.items() if key != "params"}, **theirs} for own, theirs in groups]
        state_dict = {"state": decoded, "param_groups": filled}
    optimizer.load_state_dict(state_dict)
    return f"optimizer state: {found} in the checkpoint, {wanted} from now on" if found != wanted else ""


def usual_groups(model: nn.Module, weight_decay: float) -> Groups:
    """Matrices decay, biases and norms do not. Muon is for what maps hidden states to hidden states: the rows of an
    embedding or an output layer are things of their own."""
    apart = _ends(model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = [p for p in parameters if p.dim() == 2 and id(p) not in apart]
    ends = [p for p in parameters if p.dim() > 2 or id(p) in apart]
    flat = [p for p in parameters if p.dim() < 2]
    groups: Groups = [
        {"params": hidden, "weight_decay": weight_decay, "muon": True},
        {"params": ends, "weight_decay": weight_decay},
        {"params": flat, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _ends(model: nn.Module) -> set[int]:
    """Embeddings, and the last linear layer, after which nothing comes."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = [id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)]
    return embeddings | set(linear[-1:])


class CombinedOptimizer(Optimizer):
    """Several optimizers as one. Groups and state are theirs; here they only stand side by side."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()
        self._step_supports_amp_scaling = all(map(skips_on_device, parts))

    def step(self) -> None:  # type: ignore[override]  # what a closure is for, the loop does itself
        flags = {name: getattr(self, name) for name in ("grad_scale", "found_inf") if hasattr(self, name)}
        for part in self.parts:
            for name, flag in flags.items():
                setattr(part, name, flag)
            part.step()
            for name in flags:
                delattr(part, name)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Each part from its own groups: not all keep their state as torch does."""
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(f"{len(groups)} groups of parameters, and the optimizer has {len(self.param_groups)}")
        start = 0
        for part in self.parts:
            own = groups[start : (start := start + len(part.param_groups))]
            numbers = {number for group in own for number in group["params"]}
            state = {number: entry for number, entry in state_dict["state"].items() if number in numbers}
            part.state = defaultdict(dict)
            part.load_state_dict({"state": state, "param_groups": own})
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = defaultdict(dict, chain.from_iterable(part.state.items() for part in self.parts))
        self._share()

    def _share(self) -> None:
        """One dictionary of state for all, and each part its own of the groups."""
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups = self.param_groups[start:end]
            part.state = self.state
            start = end


class LossScaler(torch.amp.GradScaler):
    """Scale of the loss, with which float16 holds small gradients. The same on all ranks: each
    learns of an overflow on any of them."""

    def on_device(self) -> Tensor | None:
        """The scale, which this does not wait for. None: disabled, or no loss was scaled yet."""
        return self._scale if self.is_enabled() else None

    def overflowed(self, optimizer: Optimizer) -> None:
        """Skip, after `unscale_`, this update and lower the scale, whatever this rank has found in its own
        gradients."""
        if self.is_enabled():
            for found in self._found_inf_per_device(optimizer).values():
                found.fill_(1.0)

    def step_unless(self, void: Tensor, optimizer: Optimizer) -> None:
        """Step as `step` does, but the device skips the update where `void` is true: one value on it, which this does
        not wait for. For an optimizer that `skips_on_device`."""
        if self.is_enabled():
            for found in self._found_inf_per_device(optimizer).values():
                found.masked_fill_(void, 1.0)
            self.step(optimizer)
            return
        optimizer.found_inf = void.float()  # type: ignore[attr-defined]  # as GradScaler gives it to fused optimizers
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]  # as above


def skips_on_device(optimizer: Optimizer) -> bool:
    """Return whether it takes a flag on the device that says to skip the update: torch's fused ones and Muon do."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def fill_momentum(optimizer: Optimizer) -> None:
    """Give SGD the momentum that it lacks, zero: in its first step torch's fused one takes memory as it is for it,
    and where the device skips that step, so it stays. From zero the first step is the same."""
    for group in optimizer.param_groups if isinstance(optimizer, SGD) else ():
        for parameter in group["params"]:
            if parameter.requires_grad and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(
                    parameter, memory_format=torch.preserve_format
                )


@contextmanager
def standing_still(model: nn.Module, optimizer: Optimizer) -> Iterator[Callable[[], None]]:
    """Yield the function that clips and steps: rate 0 and gradients of zero move no weight. What the optimizer
    began to remember is forgotten at the end: for an optimizer that has not taken or loaded a step."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0

    def step() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        float(next(model.parameters()).detach().reshape(-1)[0])  # waits for what a GPU still has to do

    try:
        yield step
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
