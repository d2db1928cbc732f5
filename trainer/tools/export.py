"""A checkpoint's model alone, as safetensors: for whoever has the weights' shapes in code of their own.

Nothing in such a file can run when it is read (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from trainer.data.files import write_atomic
from trainer.engine.checkpoints.checkpoint import locate
from trainer.errors import ConfigurationError, TrainerError


def run(checkpoint: Path, to: Path) -> int:
    found = locate(checkpoint, print)
    if to.is_dir():
        raise ConfigurationError(
            f"{to}: a folder; give the file that is to be written, such as {to / 'model'}.safetensors"
        )
    weights: Mapping[str, Tensor] = torch.load(found.state_file, map_location="cpu", weights_only=True)["model"]
    tensors, twins = told_apart(weights)
    manifest = found.manifest
    words = {
        "step": str(manifest.step),
        "workload": manifest.workload,
        "identity": json.dumps(manifest.identity),
        "torch": manifest.torch,
        "run_id": manifest.run_id,
    }
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(to, save(tensors, {"format": "pt", **words, **twins}))
    except OSError as error:
        raise TrainerError(f"{to}: {error.strerror}") from error
    count = sum(tensor.numel() for tensor in tensors.values())
    print(f"{to}: {len(tensors)} tensors, {count} numbers, of step {found.step} of {words['workload'] or 'a training'}")
    return 0


def told_apart(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, by its first name, with memory of its own, and for each further name the first: what
    `safetensors.torch.load_model` expects of weights that are tied."""
    first: dict[tuple[object, ...], str] = {}
    tensors, twins = {}, {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = first.setdefault(place, name) if tensor.numel() else name
        if known == name:
            tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
        else:
            twins[name] = known
    return tensors, twins
