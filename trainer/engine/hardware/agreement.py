"""Agreement of the ranks on scale and precision, where they do not all compute in the same precision."""

from __future__ import annotations

from dataclasses import replace

import torch

from trainer.engine.group import Group
from trainer.engine.hardware.device import Hardware

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def agree(hardware: Hardware, group: Group, *, auto: bool) -> Hardware:
    """Agree on the hardware, on all ranks, before an optimizer is made. `auto`: the precision is not asked for by the
    user.

    Each rank multiplies in what it is fast at. Alike on all of them are the scale of the loss, for their gradients are
    summed, and the precision of the optimizer's products, for their weights are to stay the same (docs/adr/0027).
    """
    if group.alone:
        return hardware
    labels, chosen = group.all_gather_text(group.place.label), _everyones(hardware, group)
    missing = tuple(label for label, dtype in zip(labels, chosen, strict=True) if dtype is not torch.bfloat16)
    if auto and missing and not hardware.on_gpu and hardware.dtype is torch.bfloat16:
        hardware = replace(hardware, dtype=torch.float32)  # CPUs compute alike (docs/adr/0027)
    agreed = _everyones(hardware, group)
    everyones = tuple(zip(labels, agreed, strict=True))
    return replace(hardware, everyones=everyones, lowered_for=missing if agreed != chosen else ())


def _everyones(hardware: Hardware, group: Group) -> list[torch.dtype]:
    return [DTYPES[int(code)] for code in group.all_gather_scalar(float(DTYPES.index(hardware.dtype)))]
