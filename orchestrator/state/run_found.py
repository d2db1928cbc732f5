"""The run that a watch of machines has found."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.state.run_state import RunState


@dataclass(frozen=True, kw_only=True)
class RunFound:
    """The run that is watched from now on, as far as it is known."""

    state: RunState | None = None
    """None: there is no run."""
    unreachable: tuple[str, ...] = ()
    """Nodes that did not answer when they were asked for runs."""
