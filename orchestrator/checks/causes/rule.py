"""Description of a failure, and advice on what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.failures.owners import Owner


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The words for one signature. Its named groups may stand in `what` and `todo` as `{name}`, as may node, rank and
    run."""

    id: str
    what: str
    """Description of what happened, in plain words."""
    todo: tuple[str, ...]
    """Steps to take, the likeliest first; commands as one types them."""
    launch_again: bool = False
    """Whether what the launch was given has to change first: a resume would repeat it."""
    page: str = ""
    """The finding of `orch explain` about the same fault, seen before a run; otherwise docs/why.md has the id."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A failure in words."""

    id: str
    kind: Owner
    what: str
    todo: tuple[str, ...]
    evidence: tuple[str, ...] = field(default=())
    """The lines that say so."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost in the user's own code."""
    launch_again: bool = False
    page: str = ""
    """For `orch explain`; empty where docs/why.md says it."""
