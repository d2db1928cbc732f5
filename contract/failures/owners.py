"""Owners of failures, and what follows from each: a retry or not, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Owner = Literal["configuration", "user", "infrastructure"]
"""`configuration`: what the run was given (options, files, inventory, image). `user`: the user's code.
`infrastructure`: a machine or the network."""
Outcome = Literal["done", "stopped", "configuration", "user", "infrastructure"]
"""End of the ranks of a node, or of a run: well, as somebody asked, or by a failure of that owner."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FINAL: tuple[Outcome, ...] = ("configuration", "user")
"""Another try ends in the same way: a person has to change something."""
EXIT_CODES: Mapping[Outcome, int] = {"done": 0, "stopped": 143, "configuration": 3, "user": 1, "infrastructure": 1}
