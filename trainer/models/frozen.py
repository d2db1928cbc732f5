"""Outputs of an encoder's frozen layers for each text, cached on disk: computed once per text, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.files import write_atomic
from trainer.data.order import Indices
from trainer.models.encoder import Among, Encoder
from trainer.models.packed import Packed

STORED = {"fp32": ("<f4", torch.float32), "fp16": ("<f2", torch.float16), "bf16": ("<i2", torch.bfloat16)}
"""numpy has no bfloat16: its bits are kept as integers."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
Asked = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]


class FrozenRows:
    """Rows as long as their texts, without padding. Ranks of one machine may share a file: they write the same."""

    def __init__(self, folder: Path, name: str, lengths: NDArray[np.int64], width: int, dtype: str) -> None:
        """`name`: identifies what the rows depend on (weights, texts, cut). `dtype`: a numpy type of the bits."""
        self._made_of = (folder, name, lengths, width, dtype)
        self._state = folder / f"frozen-{name}.json"
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self.width = width
        self.dtype = dtype
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / f"frozen-{name}.known"
        # A mark may reach the disk before its row. That matters after a power cut, not after a killed process.
        boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
        try:
            state = json.loads(self._state.read_text())
        except (OSError, ValueError):
            state = {}
        if not state.get("complete") and state.get("boot") != boot:
            known.unlink(missing_ok=True)
            write_atomic(self._state, json.dumps({"boot": boot}).encode())
        self._rows = _mapped(folder / f"frozen-{name}.rows", np.dtype(dtype), (int(self._starts[-1]), width))
        self._known = _mapped(known, np.dtype(np.uint8), (len(lengths),))
        self._complete = bool(self._known.all())

    def __reduce__(self) -> tuple[type[FrozenRows], tuple[Path, str, NDArray[np.int64], int, str]]:
        return FrozenRows, self._made_of

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def known(self, indices: Indices) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._known[indices] != 0
        return known

    def read(self, indices: Indices, length: int) -> NDArray[np.generic]:
        """(rows, length, width), zeros where a row is shorter or not known yet."""
        rows = np.zeros((len(indices), length, self.width), self._rows.dtype)
        for at, index in enumerate(indices):
            if self._known[index]:
                start, end = self._starts[index], self._starts[index + 1]
                rows[at, : end - start] = self._rows[start:end]
        return rows

    def read_packed(self, indices: Indices) -> NDArray[np.generic]:
        """(tokens, width) of rows that are all known, one after the other."""
        return np.concatenate([self._rows[self._starts[index] : self._starts[index + 1]] for index in indices])

    def write(self, indices: Indices, rows: Iterable[NDArray[np.generic]]) -> None:
        for row, index in zip(rows, indices, strict=True):
            start, end = self._starts[index], self._starts[index + 1]
            self._rows[start:end] = row[: end - start]
        self._known[indices] = 1  # after the rows: a process that sees the mark sees them
        if not self._complete and self._known.all():
            self._complete = True
            self._rows.flush()
            self._known.flush()
            write_atomic(self._state, json.dumps({"complete": True}).encode())


def _mapped(path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> np.memmap[tuple[int, ...], np.dtype]:
    """Map a file, at first all zeros, which takes space on the disk only where something was written."""
    with path.open("ab") as file:
        file.truncate(int(np.prod(shape)) * dtype.itemsize)
    return np.memmap(path, dtype, "r+", shape=shape)


def keep(encoder: Encoder, lengths: NDArray[np.int64], folder: Path, made_of: str, dtype: str) -> FrozenRows:
    """Rows of these weights and texts, from an earlier run or empty. `made_of`: what else they depend on."""
    digest = hashlib.sha256(f"{made_of} {dtype} {encoder.frozen}".encode())
    for module in encoder.frozen_modules():
        for value in module.state_dict().values():
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return FrozenRows(folder, digest.hexdigest()[:16], lengths, encoder.heads.in_features, STORED[dtype][0])


def known_packed(cached: FrozenRows | None, indices: Indices) -> Tensor:
    """(tokens, width): cached content of these rows, one after the other; empty unless all are known."""
    if cached is None or not cached.known(indices).all():
        return torch.empty(0, 0)
    return _typed(torch.from_numpy(cached.read_packed(indices)))


def known_rows(cached: FrozenRows | None, indices: Indices, width: int) -> tuple[Tensor, Tensor]:
    """Cached content of these rows, padded to `width`, and (rows, 1) which are known, if only some are."""
    nothing = torch.empty(len(indices), 0)
    known = cached.known(indices) if cached else np.zeros(len(indices), bool)
    if cached is None or not known.any():
        return nothing, nothing.bool()
    rows = _typed(torch.from_numpy(cached.read(indices, width)))
    return rows, nothing.bool() if known.all() else torch.from_numpy(known)[:, None]


def completed(encoder: Encoder, cached: FrozenRows, asked: Asked) -> Tensor:
    """(rows, length, width): `hidden` if all is known; otherwise the missing rows are computed and stored. They pass
    through the stored precision, too: the first epoch has the values of the next ones."""
    rows, tokens, mask, hidden, known = asked
    if hidden.shape[1] and not known.shape[1]:
        return hidden.float()
    missing = torch.arange(len(tokens), device=tokens.device)
    if known.shape[1]:
        missing = (~known[:, 0]).nonzero().flatten()
    fresh, bits = _computed(encoder, cached, tokens[missing], None if mask is None else mask[missing])
    cached.write(rows[missing].cpu().numpy(), bits)
    if not known.shape[1]:
        return fresh.float()
    return hidden.index_copy(0, missing, fresh).float()


def completed_packed(encoder: Encoder, cached: FrozenRows, rows: Tensor, tokens: Tensor, among: Packed) -> Tensor:
    """(tokens, width) of a packed batch whose rows are not all known: computed, stored, and as they are stored."""
    fresh, bits = _computed(encoder, cached, tokens, among)
    in_row = among.starts.cpu().numpy().argsort()
    cached.write(rows.cpu().numpy()[in_row], np.split(bits, among.bounds.cpu().numpy()[1:-1]))
    return fresh.float()


def _computed(encoder: Encoder, cached: FrozenRows, tokens: Tensor, among: Among) -> tuple[Tensor, NDArray[np.generic]]:
    """Outputs in the type in which they are stored, and their bits."""
    # In float32 for any precision of the run: the rows serve any other run, on any machine.
    with torch.autocast(tokens.device.type, enabled=False):
        fresh = encoder.embed(tokens, among)
    fresh = fresh.to(next(dtype for stored, dtype in STORED.values() if stored == cached.dtype))
    bits = fresh.cpu()
    return fresh, (bits.view(torch.int16) if bits.dtype is torch.bfloat16 else bits).numpy()


def _typed(rows: Tensor) -> Tensor:
    return rows.view(torch.bfloat16) if rows.dtype is torch.int16 else rows
