"""A checkpoint as a node holds it: RUN/checkpoints/step-00000300/{state.pt, manifest.json, …}.

A manifest comes from another machine and is not trusted: it is read with limits, and a manifest that does not fit
makes the checkpoint damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from orchestrator.specs.run import RUN_ID

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1024 * 1024
"""Bytes; the trainer's have some thousand."""
FILES_LIMIT = 256
BYTES_LIMIT = 2**50
STEP_LIMIT = 10**12

_FOLDER = re.compile(r"step-(\d{1,12})", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
"""A plain name: nothing that leads out of the folder, is hidden, or reads as an option."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One file of a checkpoint, as its manifest describes it."""

    name: str
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CheckpointCopy:
    """One checkpoint on one node."""

    node: str
    run_id: str
    step: int
    folder: str
    """Absolute, on that node."""
    age_s: float
    """Seconds since it was written, by that node's clock."""
    parts: tuple[CheckpointFile, ...]
    """Files, the manifest last; none if the manifest is not valid."""
    problem: str = ""
    """Why it must not be loaded, as far as was looked; empty for a sound one."""
    hashed: bool = False
    """Whether every file's content was compared with the manifest, not its size alone."""
    best: bool = False
    """Whether the run's best.json names it."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(part.size for part in self.parts)

    @property
    def identity(self) -> tuple[int, str]:
        """The same for copies of one checkpoint: its step, and the hash of the manifest, which holds all others."""
        return self.step, self.parts[-1].sha256 if self.parts else ""

    @property
    def name(self) -> str:
        return folder_name(self.step)


def folder_name(step: int) -> str:
    """Folder name of a checkpoint, as the trainer writes it."""
    return f"step-{step:08d}"


def is_run_id(name: str) -> bool:
    """Whether a folder of this name may be a run's, on this computer too."""
    return bool(re.fullmatch(RUN_ID, name))


def step_of(folder: str) -> int | None:
    """The step that a folder's name means; None for any other name, such as one padded in another way."""
    match = _FOLDER.fullmatch(folder)
    return int(match[1]) if match and folder_name(int(match[1])) == folder else None


def read_manifest(text: str, *, step: int) -> tuple[CheckpointFile, ...]:
    """The files that a manifest promises, in its order. `ValueError` says what is wrong with it."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} has no list of files")
    if not _is_count(manifest.get("step"), STEP_LIMIT) or manifest["step"] != step:
        raise ValueError(f"{MANIFEST} is for a different step")
    if not 0 < len(manifest["files"]) <= FILES_LIMIT:
        raise ValueError(f"{MANIFEST} lists {len(manifest['files'])} files, not 1 to {FILES_LIMIT}")
    return tuple(_part(name, entry) for name, entry in manifest["files"].items())


def misfit(parts: tuple[CheckpointFile, ...], sizes: Mapping[str, int]) -> str:
    """First difference between the files present (name: bytes) and the manifest; empty if none."""
    for part in parts:
        if part.name not in sizes:
            return f"{part.name} is missing"
        if sizes[part.name] != part.size:
            return f"{part.name} has {sizes[part.name]} bytes instead of {part.size}"
    return ""


def changed(parts: tuple[CheckpointFile, ...], hashes: Mapping[str, str]) -> str:
    """First file with a hash (name: SHA-256) that differs from the manifest; empty if none."""
    for part in parts:
        if part.name not in hashes:
            return f"{part.name} is missing"
        if hashes[part.name] != part.sha256:
            return f"{part.name} has changed since it was written (sha256 differs)"
    return ""


def _part(name: str, entry: Any) -> CheckpointFile:
    if not _FILE.fullmatch(name) or name == MANIFEST:
        raise ValueError(f"{MANIFEST} lists a file that it must not: {name[:80]!r}")
    size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not _is_count(size, BYTES_LIMIT) or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ValueError(f"{MANIFEST} says no size and sha256 of {name}")
    return CheckpointFile(name=name, size=size, sha256=digest)


def _is_count(value: Any, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
