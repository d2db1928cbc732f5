"""Leave nothing of a run on its nodes: its containers and its folder go, the controller's record stays."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.runs.launch import Seated, discard
from orchestrator.specs.plan import Plan

# A constant; $1 folder of the project, $2 run id. Only what a launch has made: it left its plan there.
_REMOVE = """
if [ -f "$1/runs/$2/plan.json" ]; then rm -rf -- "$1/runs/$2"; fi
"""


def forget(seated: Sequence[Seated], plan: Plan, *, timeout_s: float = 120.0) -> tuple[Outcome[Seated, None], ...]:
    """For a run that has ended and had not been there before this launch: checkpoints in its folder go too."""
    folders = {part.node: part.folder for part in plan.nodes}

    def clear(seat: Seated) -> None:
        discard(seat)
        made = seat.node.run(["sh", "-c", _REMOVE, "sh", folders[seat.node.name], plan.run_id])
        made.check(f"removing {folders[seat.node.name]}/runs/{plan.run_id}")

    return fan_out(seated, clear, timeout_s=timeout_s)
