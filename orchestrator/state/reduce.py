"""The reducer: a fact in, a changed state. Total and deterministic, without input, output or a clock."""

from __future__ import annotations

from orchestrator.state.facts import Fact
from orchestrator.state.run_state import RunState


def apply(state: RunState, fact: Fact) -> None:
    """Take a fact into account. O(1) for a line of text."""
    raise NotImplementedError
