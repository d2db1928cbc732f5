"""Checkpoints as a table, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from orchestrator.render.grid import grid
from orchestrator.specs.checkpoint import CheckpointCopy

MINUTE, HOUR, DAY = 60, 3600, 86400


def checkpoint_lines(held: Sequence[CheckpointCopy], copies: Mapping[tuple[int, str], int]) -> Iterator[Text]:
    """Newest first, run by run, a line for each node that holds one."""
    head = ("run", "node", "state", "step", "size", "age", "copies")
    lines = [
        (
            one.run_id,
            one.node,
            state(one),
            str(one.step),
            size(one.size),
            age(one.age_s),
            str(copies[one.identity]) if not one.problem else "-",
        )
        for one in held
    ]
    return grid([head, *lines], left=3, styles=["bold", *("bold red" if one.problem else "" for one in held)])


def in_order(held: Sequence[CheckpointCopy]) -> list[CheckpointCopy]:
    """The run that was written to last comes first; in it, the newest step."""
    youngest: dict[str, float] = {}
    for one in held:
        youngest[one.run_id] = min(one.age_s, youngest.get(one.run_id, one.age_s))
    return sorted(held, key=lambda one: (youngest[one.run_id], one.run_id, -one.step))


def checkpoint_data(one: CheckpointCopy, copies: Mapping[tuple[int, str], int]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "run_id": one.run_id,
        "step": one.step,
        "node": one.node,
        "folder": one.folder,
        "bytes": one.size,
        "age_s": one.age_s,
        "problem": one.problem,
        "hashed": one.hashed,
        "best": one.best,
        "copies": copies.get(one.identity, 0) if not one.problem else 0,
    }


def state(one: CheckpointCopy) -> str:
    """`complete` is what a look at sizes can tell, `sound` what hashes say; why one is damaged, `damage` tells."""
    words = "damaged" if one.problem else "sound" if one.hashed else "complete"
    return f"{words}, best" if one.best else words


def damage(held: Sequence[CheckpointCopy]) -> Iterator[str]:
    """A line for each that is damaged."""
    return (f"✗ {one.node}: {one.folder}: {one.problem}" for one in held if one.problem)


def size(count: int) -> str:
    """Bytes with the unit that leaves few digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def age(seconds: float) -> str:
    """In the largest unit that it has two of."""
    for unit, length in (("days", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
