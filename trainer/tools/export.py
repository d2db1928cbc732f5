"""Export a checkpoint's model as safetensors, which runs no code when it is read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

import torch
from safetensors.torch import save
from torch import Tensor

from contract.checkpoint import STATE
from trainer.checkpoint_folder import locate
from trainer.config import RankInfo
from trainer.data.files import write_atomic
from trainer.engine.checkpoints.state_file import read_state
from trainer.errors import ConfigurationError, TrainerError


def run(given: argparse.Namespace, _place: RankInfo) -> int:
    found, to = locate(given.checkpoint, print), given.to
    if to.is_dir():
        raise ConfigurationError(f"{to}: a folder; give the file to write, such as {to / 'model'}.safetensors")
    if found.manifest.entry != STATE:
        raise ConfigurationError(f"{found.path}: files of your own script, whose format is not known here; pull them")
    weights: Mapping[str, Tensor] = read_state(found.state_file)["model"]
    tensors, twins = split_tied(weights)
    manifest = found.manifest
    words = {
        "format": "pt",
        "step": str(manifest.step),
        "workload": manifest.workload,
        "identity": json.dumps(manifest.identity),
        "torch": manifest.torch,
        "run_id": manifest.run_id,
    }
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(to, save(tensors, {**words, **twins}))
    except OSError as error:
        raise TrainerError(f"{to}: {error.strerror}") from error
    count = sum(tensor.numel() for tensor in tensors.values())
    print(f"{to}: {len(tensors)} tensors, {count} numbers, of step {found.step} of {manifest.workload or 'a training'}")
    return 0


def split_tied(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, by its first name, with memory of its own, and the first name of each further name: the
    form in which `safetensors.torch.load_model` reads tied weights."""
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
