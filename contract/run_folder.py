"""Names of files in a run's folder on a node that both sides know."""

from __future__ import annotations

AGENTS_TOKEN = "agents.token"  # noqa: S105  # the name of a file
"""File with the token that the agents of an attempt prove to have; new for each attempt, mode 0600."""
