"""`orch adopt`: take over a run whose launch was interrupted."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunArgument
from orchestrator.cli.report import say

EXAMPLES = """\
orch adopt RUN
orch adopt RUN --detach
"""


@expand(only=("as_json", "detach", "no_supervise", "inventory", "engine"))
def adopt(mode: OutputMode, run: RunArgument = None) -> int:
    """Finish a launch that was interrupted (laptop closed, power lost), and follow the run.

    Missing containers are created and all are started. To end the run instead: orch stop RUN
    """
    from orchestrator.cli.launching.following import detach, see_through
    from orchestrator.cli.launching.supervise import rejoined

    loaded = load_inventory(mode.inventory)
    mode = replace(mode, confirmed=True, inventory=loaded.path.absolute())
    with rejoined(loaded.inventory, run, mode, finish=True) as attended:
        names = ", ".join(part.node for part in attended.plan.nodes)
        say(f"run {attended.plan.run_id} is up on {names}")
        if not mode.detach:
            return see_through(attended, mode)
    return detach(attended, mode)
