"""What a cause is, how it is recognised, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["configuration", "user", "infrastructure"]
"""Whose matter it is. Only infrastructure is worth another try with everything as it was."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One cause. Named groups of `signs` may stand in `what` and `todo` as `{name}`, as may node, rank and run."""

    id: str
    kind: Kind
    what: str
    """What happened, in plain words."""
    todo: tuple[str, ...]
    """What to do, the likeliest first; commands as one types them."""
    signs: tuple[str, ...] = ()
    """Regular expressions, each searched in one line; one that is found suffices."""
    vague: bool = False
    """Whether lines before may tell more: of another rule of its area, whose sign stands there."""
    exit_codes: tuple[int, ...] = ()
    """How a rank ends (negative: by that signal) that wrote nothing which tells more."""
    page: str = ""
    """The finding of `orch explain` about the same fault, seen before a run; else docs/why.md has the id."""

    def read(self, line: str) -> re.Match[str] | None:
        """Where one of the signs is in this line."""
        return next((found for sign in self.signs if (found := re.search(sign, line))), None)


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What is left of a rank that failed."""

    own: tuple[str, ...] = ()
    """The lines that it wrote, oldest first, without the prefixes of torch and torchrun."""
    agent: tuple[str, ...] = ()
    """Those of its torchrun, or of the container's runtime, without torchrun's summary."""
    exit_code: int | None = None
    """The rank's own (negative: ended by that signal), else its container's; None where nobody knows."""
    oom_killed: bool = False
    """Whether the container's engine says that the kernel killed in it for want of memory."""
    reported: str = ""
    """`Error: message`, from the rank's own `failed` event."""
    reported_frame: str = ""
    kernel: tuple[str, ...] = ()
    """Lines of the node's kernel since the run began, where the node could be asked."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What a rule made of the remains."""

    id: str
    kind: Kind
    what: str
    todo: tuple[str, ...]
    evidence: tuple[str, ...] = field(default=())
    """The lines that say so."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost in the user's own code."""
    page: str = ""
    """For `orch explain`; empty where docs/why.md says it."""
