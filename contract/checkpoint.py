"""Files of a checkpoint and its manifest: RUN/checkpoints/step-00000300/{state.pt, manifest.json, attachments}.

A manifest may come from another machine and is not trusted: it is read with limits, and a manifest that does not fit
makes the checkpoint damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

STATE = "state.pt"
MANIFEST = "manifest.json"
FOLDER = "."
BEST = "best.json"
"""File beside the folder of checkpoints: it names the one with the best evaluation."""
MANIFEST_LIMIT = 1024 * 1024
"""Bytes; the trainer's have some thousand."""
FILES_LIMIT = 256
BYTES_LIMIT = 2**50
STEP_LIMIT = 10**12

_FOLDER = re.compile(r"step-(\d{1,12})", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
"""A plain name: nothing that leads out of the folder, is hidden, or reads as an option."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_START = re.compile(r"(\d{1,12}):([0-9a-f]{64})", re.ASCII)
_NO_CHECKPOINT = "none"


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One file of a checkpoint, as its manifest describes it."""

    name: str
    size: int
    """Size in bytes."""
    sha256: str

    def wrong_size(self, size: int | None) -> str:
        """Problem of a file of this many bytes, None: there is none; empty for the right size."""
        if size is None:
            return f"{self.name} is missing"
        return "" if size == self.size else f"{self.name} has {size} bytes instead of {self.size}"

    def wrong_content(self, sha256: str | None) -> str:
        """Problem of a file with this hash, None: there is none; empty for the right hash."""
        if sha256 is None:
            return f"{self.name} is missing"
        return "" if sha256 == self.sha256 else f"{self.name} has changed since it was written (sha256 differs)"


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """Contents of manifest.json."""

    step: int
    files: tuple[CheckpointFile, ...] = ()
    """All files but the manifest; the state among them."""
    workload: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Model and data: a run continues only from a checkpoint with its own identity."""
    run_id: str = ""
    torch: str = ""
    """Version of PyTorch."""
    entry: str = STATE
    """Name of the file that a resumed program loads; `FOLDER`: it loads the whole folder, as a user's script may."""
    attempt: int | None = None
    """Attempt that has written it; None where it is not known."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values without a field, such as the options of the run."""


def encode_manifest(manifest: CheckpointManifest) -> str:
    """Text of manifest.json."""
    named = {name: getattr(manifest, name) for name in ("step", *_OPTIONAL)}
    named |= {} if manifest.attempt is None else {"attempt": manifest.attempt}
    files = {file.name: {"bytes": file.size, "sha256": file.sha256} for file in manifest.files}
    return json.dumps({**named, **manifest.others, "files": files}, indent=2)


def decode_manifest(content: str | bytes, *, step: int | None = None) -> CheckpointManifest:
    """The manifest of the checkpoint of `step`; None: of any step. ValueError: the problem, as text for a message."""
    if len(content) > MANIFEST_LIMIT:
        raise ValueError(f"{MANIFEST} has more than {MANIFEST_LIMIT} bytes")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{MANIFEST} is not JSON") from None
    if not isinstance(values, dict) or not isinstance(files := values.pop("files", None), dict):
        raise ValueError(f"{MANIFEST} has no list of files")
    if not _is_count(own := values.pop("step", None), STEP_LIMIT) or step not in (None, own):
        raise ValueError(f"{MANIFEST} is for a different step")
    if not 0 < len(files) <= FILES_LIMIT:
        raise ValueError(f"{MANIFEST} lists {len(files)} files, not 1 to {FILES_LIMIT}")
    listed = tuple(_file(name, entry) for name, entry in files.items())
    named = {name: values.pop(name) for name in _OPTIONAL if name in values}
    if wrong := [name for name, value in named.items() if not isinstance(value, _OPTIONAL[name])]:
        raise ValueError(f"{MANIFEST}: the value of {wrong[0]} is of another type")
    if (entry := named.get("entry", STATE)) not in (FOLDER, *files):
        raise ValueError(f"{MANIFEST} does not list {entry[:80]}")
    if (attempt := values.pop("attempt", None)) is not None and not _is_count(attempt, STEP_LIMIT):
        raise ValueError(f"{MANIFEST}: attempt is not a number")
    return CheckpointManifest(step=own, files=listed, **named, attempt=attempt, others=values)


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """The checkpoint that an attempt continues from."""

    step: int = 0
    sha256: str = ""
    """Hash of its manifest, which holds those of all its files; empty: no checkpoint, the attempt begins at step 0."""


def encode_start(point: StartPoint) -> str:
    """Value of the environment variable: `STEP:SHA256`, or `none`."""
    return f"{point.step}:{point.sha256}" if point.sha256 else _NO_CHECKPOINT


def decode_start(text: str) -> StartPoint | None:
    """None for an empty text. ValueError: neither `STEP:SHA256` nor `none`."""
    if text in ("", _NO_CHECKPOINT):
        return StartPoint() if text else None
    match = _START.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:100]!r} is not STEP:SHA256 of a checkpoint")
    return StartPoint(step=int(match[1]), sha256=match[2])


def is_file_name(name: str) -> bool:
    """Return whether a checkpoint can have a file of this name."""
    return _FILE.fullmatch(name) is not None and name != MANIFEST


def folder_name(step: int) -> str:
    """Folder name of a checkpoint."""
    return f"step-{step:08d}"


def step_of(folder: str) -> int | None:
    """The step that a folder's name means; None for any other name, such as one padded in another way."""
    match = _FOLDER.fullmatch(folder)
    return int(match[1]) if match and folder_name(int(match[1])) == folder else None


def encode_best(step: int) -> str:
    """Text of best.json."""
    return json.dumps({"step": step, "checkpoint": folder_name(step)})


def decode_best(content: str | bytes) -> str:
    """Folder name of the best checkpoint; empty if the text names none."""
    try:
        name = json.loads(content)["checkpoint"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) and step_of(name) is not None else ""


_OPTIONAL: Mapping[str, type] = {"workload": str, "identity": dict, "run_id": str, "torch": str, "entry": str}


def _file(name: str, entry: Any) -> CheckpointFile:
    if not is_file_name(name):
        raise ValueError(f"{MANIFEST} lists a file that it must not: {name[:80]!r}")
    size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not _is_count(size, BYTES_LIMIT) or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise ValueError(f"{MANIFEST} says no size and sha256 of {name}")
    return CheckpointFile(name=name, size=size, sha256=digest)


def _is_count(value: Any, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
