"""The frozen part of an encoder and the rows that are kept of it (data/frozen_rows.py): who computes, who reads."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.frozen_rows import FrozenRows
from trainer.data.order import Indices
from trainer.models.encoder import Encoder

STORED = {"fp32": ("<f4", torch.float32), "fp16": ("<f2", torch.float16), "bf16": ("<i2", torch.bfloat16)}
"""numpy knows no bfloat16: its bits are kept as whole numbers."""


def keep(encoder: Encoder, lengths: NDArray[np.int64], folder: Path, made_of: str, dtype: str) -> FrozenRows:
    """The rows of these very weights and texts, from an earlier run or empty. `made_of`: what else they depend on."""
    digest = hashlib.sha256(f"{made_of} {dtype} {encoder.frozen}".encode())
    for module in encoder.frozen_modules():
        for value in module.state_dict().values():
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    width = encoder.heads.in_features
    return FrozenRows(folder, digest.hexdigest()[:16], lengths, width, STORED[dtype][0])


def known_rows(kept: FrozenRows | None, indices: Indices, width: int) -> tuple[Tensor, Tensor]:
    """Cached content of these rows, padded to `width`, and (rows, 1) which are known, if some are and some are not."""
    nothing = torch.empty(len(indices), 0)
    known = kept.known(indices) if kept else np.zeros(len(indices), bool)
    if kept is None or not known.any():
        return nothing, nothing.bool()
    rows = _as_torch(kept.read(indices, width))
    return rows, nothing.bool() if known.all() else torch.from_numpy(known)[:, None]


Asked = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]


def completed(encoder: Encoder, kept: FrozenRows, asked: Asked) -> Tensor:
    """(rows, length, width): `hidden` if all is known; otherwise the missing rows are computed and stored.

    Computed rows pass through the stored precision, too: the first epoch sees the values of the next ones."""
    rows, tokens, mask, hidden, known = asked
    if hidden.shape[1] and not known.shape[1]:
        return hidden.float()
    missing = torch.arange(len(tokens), device=tokens.device)
    if known.shape[1]:
        missing = (~known[:, 0]).nonzero().flatten()
    # In float32 whatever the run's precision: what is kept serves any other run, on any machine.
    with torch.autocast(tokens.device.type, enabled=False):
        fresh = encoder.embed(tokens[missing], None if mask is None else mask[missing])
    fresh = fresh.to(_dtype_of(kept))
    kept.write(rows[missing].cpu().numpy(), _as_numpy(fresh))
    if not known.shape[1]:
        return fresh.float()
    return hidden.index_copy(0, missing, fresh).float()


def _dtype_of(kept: FrozenRows) -> torch.dtype:
    return next(dtype for stored, dtype in STORED.values() if stored == kept.dtype)


def _as_numpy(rows: Tensor) -> NDArray[Any]:
    rows = rows.cpu()
    return (rows.view(torch.int16) if rows.dtype is torch.bfloat16 else rows).numpy()


def _as_torch(rows: NDArray[Any]) -> Tensor:
    found = torch.from_numpy(rows)
    return found.view(torch.bfloat16) if found.dtype is torch.int16 else found
