"""Parts of prepared data, for nodes that hold some of the training shards only.

A manifest lists the shards of the training split in `splits.train.shards`. In the manifest of a part, a shard of
another node keeps its counts and has no `file`: every rank knows how many samples there are, and which of them are
here. Everything else, validation included, is in every part.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

MANIFEST = "manifest.json"
_OF_A_FILE = ("file", "bytes", "sha256")


def training_shards(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The shards of the training split. ValueError: the manifest has none, so the data cannot be divided."""
    try:
        shards = manifest["splits"]["train"]["shards"]
        if all(isinstance(shard, dict) for shard in shards):
            return list(shards)
    except (KeyError, TypeError):
        pass
    raise ValueError("its training samples are not in shards")


def here(shards: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of the shards that this part holds."""
    return [number for number, shard in enumerate(shards) if "file" in shard]


def is_part(manifest: Mapping[str, Any]) -> bool:
    return "part" in manifest


def divide(manifest: Mapping[str, Any], parts: int) -> list[dict[str, Any]]:
    """Manifests of so many parts, of similar size. ValueError: there are fewer shards, or it is a part itself.

    The result depends on the manifest alone: the largest shard first, each to the part with the fewest bytes.
    """
    shards = training_shards(manifest)
    if is_part(manifest):
        raise ValueError("it is a part of data itself")
    if len(shards) < parts:
        raise ValueError(f"its training samples are in {len(shards)} shards")
    sizes, part_of = [0] * parts, [0] * len(shards)
    for number in sorted(range(len(shards)), key=lambda number: (-int(shards[number]["bytes"]), number)):
        part = sizes.index(min(sizes))
        part_of[number] = part
        sizes[part] += int(shards[number]["bytes"])
    return [_part(manifest, part, part_of, parts) for part in range(parts)]


def _part(manifest: Mapping[str, Any], part: int, part_of: Sequence[int], parts: int) -> dict[str, Any]:
    own = copy.deepcopy(dict(manifest))
    for shard, holder in zip(own["splits"]["train"]["shards"], part_of, strict=True):
        if holder != part:
            for key in _OF_A_FILE:
                shard.pop(key, None)
    return {**own, "part": {"number": part, "of": parts}}


def files_of(manifest: object) -> list[str]:
    """Names of all files in a manifest."""
    if isinstance(manifest, dict):
        if "file" in manifest:
            return [str(manifest["file"])]
        return [name for value in manifest.values() for name in files_of(value)]
    if isinstance(manifest, list):
        return [name for value in manifest for name in files_of(value)]
    return []
