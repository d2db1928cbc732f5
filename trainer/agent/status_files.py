"""Statuses that the ranks of a node write: data of the user's program, read in bounds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.json_reader import from_json
from contract.rank_signs import MOST_RANKS, RankSigns
from trainer.agent import rank_status
from trainer.agent.heartbeat import RESTING

MOST_BYTES = 64 * 1024
"""Maximum size of a status: its rank writes it, which is the user's program."""
MOST_GROUPS = 64
"""Process groups of a rank, and characters of the name of one."""
LONGEST = 200
"""Characters of a text of a status."""


def read_statuses(folder: Path, first_rank: int, now: float, live: Collection[int] = ()) -> list[RankSigns]:
    """Read one status of each rank: that of a live process, and of a member of the process group, as workers inherit
    the variables. `live`: ids of processes; of the others, which leave their files behind, the newest are read."""
    found: dict[int, tuple[bool, bool, int, RankSigns]] = {}
    names = {str(process) for process in live}
    paths = sorted(folder.glob(f"*{rank_status.SUFFIX}"), key=lambda path: (path.stem not in names, -_written(path)))
    for path in paths[:MOST_RANKS]:
        if (status := _read(path)) is None:
            continue
        with contextlib.suppress(ValueError, OverflowError):
            signs = _signs(status, first_rank, now)
            key = (signs.process in live, signs.in_group, -_whole(status.get("parent")))
            if signs.rank not in found or key > found[signs.rank][:3]:
                found[signs.rank] = (*key, signs)
    return [signs for *_, signs in found.values()]


def _signs(status: dict[str, Any], first_rank: int, now: float) -> RankSigns:
    """The signs of one status. ValueError: it is none, or of a process that is no rank."""
    at, rank, local_rank = status.get("at"), status.get("rank"), str(status.get("local_rank", ""))
    if rank is None and local_rank.isdecimal():
        rank = first_rank + int(local_rank)
    if not isinstance(at, int | float) or not isinstance(rank, int):
        raise ValueError("no rank")
    port = str(status.get("store_port", ""))
    values = {**status, "rank": rank, "age_s": max(0.0, now - at), "store_port": int(port) if port.isdigit() else 0}
    signs = bounded(from_json(RankSigns, values))
    return replace(signs, left_out=signs.exchange == RESTING)


def bounded(signs: RankSigns) -> RankSigns:
    """The same, with texts of bounded length. ValueError: a number is out of bounds."""
    if signs.rank < 0 or signs.process < 0 or any(len(pair) != 2 for pair in signs.groups.values()):
        raise ValueError("not the signs of a rank")
    texts = {name: getattr(signs, name)[:LONGEST] for name in ("node", "call", "line", "importing", "part", "exchange")}
    groups = {name[:MOST_GROUPS]: numbers for name, numbers in list(signs.groups.items())[:MOST_GROUPS]}
    return replace(signs, **texts, groups=groups, libraries=tuple(name[:LONGEST] for name in signs.libraries[:8]))


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it went away just now
        return 0.0


def _read(path: Path) -> dict[str, Any] | None:
    """A status; None where it is cut: it was written at the same moment, or by another program."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:  # it may be a pipe
            values = json.loads(file.read(MOST_BYTES).split(b"\n", 1)[0])
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
