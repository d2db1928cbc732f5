"""Manifest of a checkpoint, read as untrusted input: it comes from anywhere, and decides what is opened."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

LARGEST = 1 << 20
"""A manifest of ours has a few KiB."""
_FILE = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
"""A file of the checkpoint's own folder, not a way out of it."""


def read_manifest(path: Path, vouched_for: str) -> dict[str, Any]:
    """With `step`, `files` (name: bytes, sha256; `vouched_for` among them) and, where it has one, `identity`.

    ValueError, in words, where it is anything else; OSError where it cannot be read.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError("it is no plain file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError("it is larger than any of ours")
    try:
        manifest = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it lists no files")
    step = manifest.get("step")
    if type(step) is not int or not 0 <= step < 1 << 62:
        raise ValueError("it has no step")
    if not isinstance(manifest.get("identity", {}), dict):
        raise ValueError("its identity is none")
    for name, entry in manifest["files"].items():
        if not _FILE.fullmatch(name):
            raise ValueError(f"it names a file outside of the checkpoint: {name[:100]!r}")
        if not isinstance(entry, dict) or not {"bytes", "sha256"} <= set(entry):
            raise ValueError(f"it does not say what {name} holds")
    if vouched_for not in manifest["files"]:
        raise ValueError(f"it does not vouch for {vouched_for}")
    return manifest
