"""torch.compile of a model in place, block by block, and what it takes on this machine.

The repeated blocks of a transformer are compiled, not the model as a whole: torch compiles one and uses it for all, in
half the time, and gradients come block by block, so that their exchange overlaps with the backward pass.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.models.layers import RegionOnGpu

BLOCKS_S, WHOLE_S = 20.0, 45.0
"""Seconds to compile a block of GPT-2, and a model without repeated blocks, for the first time on a GPU's node; both
are estimates, replaced by what the first run measures."""
WARM = 0.25
"""Share of that time if the kernels are in the cache: 2.6 of 15 s measured, and the rest is for slow disks."""


def regions(model: nn.Module) -> Sequence[nn.Module]:
    """Blocks to be compiled each on its own: the largest list of modules that are alike; without one, the model."""
    lists = [list(each.children()) for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    repeated = [blocks for blocks in lists if len(blocks) > 1 and len({_signature(block) for block in blocks}) == 1]
    return max(repeated, key=lambda blocks: _size(blocks[0]) * len(blocks), default=[model])


def parts(model: nn.Module, device: torch.device) -> list[nn.Module]:
    """All that is compiled, each on its own: the regions, and on a GPU further ones that lie outside of them."""
    blocks = list(regions(model))
    inside = {module for block in blocks for module in block.modules()}
    more = [one for one in model.modules() if isinstance(one, RegionOnGpu) and one not in inside]
    return blocks + (more if device.type == "cuda" else [])


def _signature(block: nn.Module) -> tuple[object, ...]:
    """Alike for blocks that one compiled function serves."""
    tensors = (*block.named_parameters(), *block.named_buffers())
    return (type(block), *((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def compile_in_place(
    model: nn.Module, device: torch.device, *, dynamic: bool | None = None, backend: str = "inductor",
    cuda_graphs: bool = False,
) -> str:  # fmt: skip
    """Compile the model's `parts` without wrappers around them, so that the names of its weights stay.

    Returns why that cannot be, empty if it can. `dynamic=True` is for batches of many lengths: one kernel for all
    instead of one for each length, until torch gives up. `cuda_graphs`: see `must_allow_graphs`.
    """
    how: dict[str, Any] = {"dynamic": dynamic, "backend": backend}
    if cuda_graphs:
        how["options"] = {"triton.cudagraphs": True}
    missing = missing_requirement(device)
    if not missing:
        if cuda_graphs:
            model.register_forward_pre_hook(_begin_replay)
        # Torch would cut each block where one of DDP's buckets ends, and only if DDP makes the first pass.
        torch._dynamo.config.optimize_ddp = False
        for region in parts(model, device):
            if type(region) is nn.Sequential:
                region._compiled_call_impl = torch.compile(_call_of(region), **how)
            else:
                region.compile(**how)
    return missing


def _begin_replay(model: nn.Module, _inputs: object) -> None:
    """Begin a step for torch, which otherwise takes each block's pass for one and overwrites what the others' backward
    passes need. Gradients of the pass before are in memory that this one writes to: it could not add to them."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch's own gap
    if torch.is_grad_enabled():
        model.zero_grad(set_to_none=True)


def _call_of(module: nn.Module) -> Callable[..., Any]:
    """Return the function that `module.compile()` compiles, as one of ours: torch sees that the code of a bare
    nn.Sequential is its own, and silently compiles nothing (torch 2.13)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch's own gap

    return call


def is_compiled(model: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in model.modules())


def last_together(model: nn.Module) -> Sequence[nn.Parameter]:
    """Weights whose gradients a backward pass returns all at once, last of all or nearly so. Of a compiled model, those
    of the first region that is trained. Of a model that begins with a recurrent layer, compiled or not, those of this
    layer: one operator computes them over all its time steps."""
    recurrent = next((module for module in model.modules() if isinstance(module, nn.RNNBase)), None)
    ahead = _ahead_of(recurrent, model) if recurrent is not None else []
    if recurrent is not None and _is_little(ahead, model, _size(recurrent)):
        return _of_first_operator(recurrent)
    if not is_compiled(model):
        return []
    blocks = regions(model)
    if recurrent is not None and blocks == [model]:  # torch's first graph ends there
        return ahead
    trained = [[one for one in region.parameters() if one.requires_grad] for region in blocks]
    return next(filter(None, trained), [])


def _ahead_of(layer: nn.Module, model: nn.Module) -> list[nn.Parameter]:
    own = {id(one) for one in layer.parameters()}
    return [one for one in takewhile(lambda one: id(one) not in own, model.parameters()) if one.requires_grad]


def _is_little(weights: Sequence[nn.Parameter], model: nn.Module, size: int) -> bool:
    """Return whether computing with them takes little beside a layer of so many weights: embeddings are looked up, and
    convolutions use each of theirs many times."""
    found = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    computed = [one for one in weights if id(one) not in found]
    return all(one.dim() < 3 for one in computed) and sum(one.numel() for one in computed) < size


def _of_first_operator(layer: nn.RNNBase) -> list[nn.Parameter]:
    """Trained weights of the first operator: on a CPU a layer of the module (oneDNN), on a GPU all of them (cuDNN)."""
    trained = [(name, one) for name, one in layer.named_parameters() if one.requires_grad]
    return [one for name, one in trained if one.device.type != "cpu" or name.removesuffix("_reverse").endswith("_l0")]


def undo(model: nn.Module) -> None:
    """Run the model as it was before it was compiled."""
    for module in model.modules():
        module._compiled_call_impl = None


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run without what was compiled: evaluation would compile again, for no gradients and for other sizes."""
    compiled = {module: call for module in model.modules() if (call := module._compiled_call_impl) is not None}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def is_of_the_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


# ── Time that it takes ──────────────────────────────────────────────────────────────────


def usual_cost_s(model: nn.Module) -> float:
    return WHOLE_S if regions(model) == [model] else BLOCKS_S


def missing_requirement(
    device: torch.device,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    headers: Path | None = None,
) -> str:
    """Requirement of torch.compile that this machine lacks, known before a minute of the first step; empty if none."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    wanted = environ.get("CXX" if device.type == "cpu" else "CC") or ("g++" if device.type == "cpu" else "gcc")
    if not which(wanted):
        return f"torch.compile needs a compiler, and {wanted} is not there: install it, or name another as CXX or CC"
    headers = headers or Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"torch.compile needs Python's headers, and {headers}/Python.h is not there: install python3-dev"
    return ""
