"""Length of samples that prepared tokens allow, by their manifest. Imports no package, for the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import ConfigurationError


def longest_window(manifest: Mapping[str, Any], split: str) -> int:
    """The largest `--seq-len` of which this split holds a sample: a sample is that many tokens and the one after."""
    return max((int(shard["tokens"]) - 1 for shard in manifest["splits"][split]["shards"]), default=0)


def must_hold_a_window(folder: Path, manifest: Mapping[str, Any], split: str, length: int) -> None:
    if (longest := longest_window(manifest, split)) < length:
        raise ConfigurationError(
            f"{folder}: the {split} split has fewer than --seq-len {length} + 1 tokens:"
            f" give --seq-len {longest} or less, or prepare more text"
        )
