"""One known failure: its id, its owner, and the lines or exit codes by which it is recognised."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial

from contract.failures.owners import Owner


@dataclass(frozen=True, kw_only=True)
class Signature:
    id: str
    """`AREA.NAME`."""
    owner: Owner
    """Configuration and user code are final, infrastructure is retried."""
    final: str = ""
    """Regular expression of lines with which another try of an infrastructure's failure ends in the same way: then it
    is one of the configuration."""
    patterns: tuple[str, ...] = ()
    """Regular expressions, each searched in one line; one match suffices. Their named groups go into the text of the
    cause. None may take more than linear time: repetitions inside of them are bounded."""
    exit_codes: tuple[int, ...] = ()
    """Exit codes (negative: a signal) of a rank that wrote nothing by which it could be recognised."""
    lost_peer: bool = False
    """True if it can follow from the end of another rank: then a failure of another node is the cause, not this one."""
    nearer: tuple[str, ...] = ()
    """Areas whose signatures say more, where one of them is found in the lines before or in an earlier exception."""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def search(self, line: str) -> re.Match[str] | None:
        """The first pattern's match in this line."""
        return next((found for pattern in self.patterns if (found := _compiled(pattern).search(line))), None)

    def is_final(self, lines: Iterable[str]) -> bool:
        """Return whether one of the lines of a failed rank says that another try ends in the same way."""
        return bool(self.final) and any(_compiled(self.final).search(line) for line in lines)


def _known(
    owner: Owner,
    id: str,
    *patterns: str,
    final: str = "",
    exit_codes: tuple[int, ...] = (),
    lost_peer: bool = False,
    nearer: tuple[str, ...] = (),
) -> Signature:
    return Signature(
        id=id,
        owner=owner,
        final=final,
        patterns=patterns,
        exit_codes=exit_codes,
        lost_peer=lost_peer,
        nearer=nearer,
    )


configuration, user, infrastructure = (
    partial(_known, "configuration"),
    partial(_known, "user"),
    partial(_known, "infrastructure"),
)
"""Constructors of the signatures of each owner: an id, then the patterns."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
