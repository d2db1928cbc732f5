"""Each collective with values that every rank knows beforehand: a rank counted twice or left out shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.engine.group import Group

LENGTH = 1000
"""Values of a message: more than one packet holds."""


@dataclass(frozen=True, kw_only=True)
class CollectiveCheck:
    """One collective as this rank saw it."""

    name: str
    words: str
    """For the rank's line."""
    wrong: str = ""
    """Value received instead; empty if it was right."""
    lacking: bool = False
    """Whether the backend has no such collective."""


def check(group: Group) -> Iterator[CollectiveCheck]:
    """One collective after another, to be asked for by all ranks. Rank r's value is r + 1, so that no two ranks' are
    alike and none is 0."""
    ranks, rank = group.place.world_size, group.place.rank
    every = torch.arange(1.0, ranks + 1)
    mine = torch.full((LENGTH,), rank + 1.0)
    rows = mine.repeat(ranks, 1) * every[:, None]
    total = float(every.sum())

    def all_reduce() -> Tensor:
        tensor = mine.clone()
        group.all_reduce(tensor)
        return tensor

    def broadcast() -> Tensor:
        tensor = mine.clone()
        group.broadcast(tensor)
        return tensor

    cases: list[tuple[str, Callable[[], Tensor], Tensor]] = [
        ("all_reduce", all_reduce, torch.full((LENGTH,), total)),
        ("broadcast", broadcast, torch.ones(LENGTH)),
        ("all_gather", lambda: group.all_gather(mine), every[:, None].expand(ranks, LENGTH)),
        ("all_to_all", lambda: group.all_to_all(rows), (every * (rank + 1))[:, None].expand(ranks, LENGTH)),
        ("reduce_scatter", lambda: group.reduce_scatter(rows), torch.full((LENGTH,), total * (rank + 1))),
    ]
    # A group alone gets back what it gave, without torch's collectives.
    yield from (_judged(*case) for case in (cases[:1] if group.alone else cases))
    group.barrier()
    yield CollectiveCheck(name="barrier", words="barrier OK")


def _judged(name: str, collective: Callable[[], Tensor], expected: Tensor) -> CollectiveCheck:
    try:
        found = collective()
    except RuntimeError as error:
        if "not support" not in str(error):
            raise
        return CollectiveCheck(name=name, words=f"{name} lacking", lacking=True)
    right = bool(torch.equal(found, expected))
    first = int((found != expected).flatten().nonzero()[0]) if not right else 0
    got, wanted = float(found.flatten()[first]), float(expected.flatten()[first])
    words = f"{name} {got:g} (expected {wanted:g}) {'OK' if right else 'WRONG'}"
    return CollectiveCheck(
        name=name,
        words=words if name == "all_reduce" or not right else f"{name} OK",
        wrong="" if right else f"{name} gave {got:g}, expected {wanted:g}",
    )
