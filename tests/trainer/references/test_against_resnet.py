"""ResNets against torchvision's, and against a forward pass written by hand, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.trainer.references.conftest import Agrees
from tests.trainer.references.deviation import largest, relative
from trainer.models.layers import Recompute, recompute
from trainer.models.resnet import SHAPES, ResNet

NAMES = ("resnet18", "resnet34", "resnet50")
CLASSES = 11
CHECKPOINTING: tuple[Recompute, ...] = (0, 1, "selective")
STATISTICS = ("running_mean", "running_var")
State = dict[str, Tensor]


def torchvision_names(name: str) -> dict[str, str]:
    """Our names of a ResNet's tensors, in torchvision's order and with torchvision's names as keys."""
    shape = SHAPES[name]
    convolutions = 3 if shape.expansion > 1 else 2
    names = {"conv1": "stem.0", "bn1": "stem.1"}
    number = 0
    for stage, count in enumerate(shape.blocks, 1):
        for block in range(count):
            for at in range(convolutions):
                names[f"layer{stage}.{block}.conv{at + 1}"] = f"blocks.{number}.layers.{3 * at}"
                names[f"layer{stage}.{block}.bn{at + 1}"] = f"blocks.{number}.layers.{3 * at + 1}"
            if block == 0 and (stage > 1 or shape.expansion > 1):
                names[f"layer{stage}.0.downsample.0"] = f"blocks.{number}.shortcut.0"
                names[f"layer{stage}.0.downsample.1"] = f"blocks.{number}.shortcut.1"
            number += 1
    return {**names, "fc": "head"}


def renamed(name: str, ours: State) -> State:
    """Tensors by torchvision's names."""
    ends = ("weight", "bias", *STATISTICS, "num_batches_tracked")
    pairs = [(f"{theirs}.{end}", f"{own}.{end}") for theirs, own in torchvision_names(name).items() for end in ends]
    found = {theirs: ours[own].detach().clone() for theirs, own in pairs if own in ours}
    assert len(found) == len(ours)
    return found


def by_hand(state: State, images: Tensor) -> Tensor:
    """He et al. 2015, with the stride of a bottleneck in its 3×3 convolution, as torchvision has it."""

    def convolved(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        mean, variance = (state[f"{norm}.{which}"] for which in STATISTICS)
        state[f"{norm}.num_batches_tracked"] += 1
        return F.batch_norm(x, mean, variance, state[f"{norm}.weight"], state[f"{norm}.bias"], training=True)

    x = F.max_pool2d(F.relu(convolved(images, "conv1", "bn1", 2)), 3, stride=2, padding=1)
    bottleneck = "layer1.0.conv3.weight" in state
    for stage in range(1, 5):
        block = 0
        while (prefix := f"layer{stage}.{block}.") + "conv1.weight" in state:
            stride = 2 if stage > 1 and block == 0 else 1
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            out = x
            for at, step in enumerate(strides, 1):
                out = convolved(out, f"{prefix}conv{at}", f"{prefix}bn{at}", step)
                out = F.relu(out) if at < len(strides) else out
            if f"{prefix}downsample.0.weight" in state:
                x = convolved(x, f"{prefix}downsample.0", f"{prefix}downsample.1", stride)
            x, block = F.relu(out + x), block + 1
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def of_hand(name: str, state: State, images: Tensor) -> tuple[Tensor, State, State]:
    leaves = {key: tensor.clone() for key, tensor in state.items()}
    trained = {key: one.requires_grad_() for key, one in leaves.items() if key.endswith(("weight", "bias"))}
    logits = by_hand(leaves, images)
    graded = torch.autograd.grad(loss_of(logits), list(trained.values()))
    return logits, dict(zip(trained, graded, strict=True)), leaves


def of_torchvision(torchvision: Any) -> Callable[[str, State, Tensor], tuple[Tensor, State, State]]:
    def compute(name: str, state: State, images: Tensor) -> tuple[Tensor, State, State]:
        model = getattr(torchvision.models, name)(num_classes=CLASSES).train()
        model.load_state_dict(state)
        logits = model(images)
        loss_of(logits).backward()
        return logits, {key: one.grad for key, one in model.named_parameters()}, model.state_dict()

    return compute


def loss_of(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(len(logits)) % CLASSES)


@pytest.mark.parametrize("reference", ["written by hand", "torchvision"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_gradients_and_running_statistics(name: str, reference: str, agrees: Agrees) -> None:
    """Logits are compared with and without checkpointing, which must not count a batch twice in the statistics."""
    compute = of_hand if reference == "written by hand" else of_torchvision(pytest.importorskip("torchvision"))
    torch.manual_seed(0)
    ours, images = ResNet(SHAPES[name], 3, CLASSES).train(), torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        for parameter in ours.parameters():  # biases and norms start at 0 and 1, where a mix-up would not show
            parameter.add_(torch.randn_like(parameter) * 0.05)
    before = {key: tensor.clone() for key, tensor in ours.state_dict().items()}
    expected, expected_gradients, after = compute(name, renamed(name, before), images)
    moved = {key: tensor for key, tensor in after.items() if key.endswith((*STATISTICS, "num_batches_tracked"))}
    found = []
    for how in CHECKPOINTING:
        recompute(ours.blocks, how)
        ours.load_state_dict(before)
        ours.zero_grad()
        logits = ours(images)
        loss_of(logits).backward()
        gradients = renamed(name, {key: one.grad for key, one in ours.named_parameters() if one.grad is not None})
        counted = renamed(name, ours.state_dict())
        found.append(
            (
                relative(logits, expected),
                largest(gradients, expected_gradients),
                largest({key: counted[key] for key in moved}, moved),
            )
        )
    worst = dict(zip(("logits", "gradients", "statistics"), np.max(found, axis=0).tolist(), strict=True))
    # Measured: 0, 0, 0. The bound is some units in the last place, for CPUs with other kernels.
    agrees(name.replace("resnet", "ResNet-"), reference, **{key: (value, 1e-6) for key, value in worst.items()})
