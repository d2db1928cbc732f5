"""Rounds of pairs in which each two members meet once, and no member is in two pairs of a round."""

from __future__ import annotations


def rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs, the smaller rank first: ranks - 1 of them, one more where the number is odd and one waits.

    The circle method of round-robin tournaments: one stays, the others turn around it.
    """
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
