"""`orch adopt`: take over a run whose launch was interrupted."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.cli.context import load_inventory
from orchestrator.cli.flags import expand
from orchestrator.cli.options import OutputMode, RunArgument
from orchestrator.cli.report import say, write_json, write_line
from orchestrator.specs.errors import EXIT_OK

EXAMPLES = """\
orch adopt RUN
orch adopt RUN --detach
"""


@expand(only=("as_json", "detach", "no_watch", "inventory", "engine"))
def adopt(mode: OutputMode, run: RunArgument = None) -> int:
    """Finish a launch that was interrupted (laptop closed, power lost), and follow the run.

    Missing containers are created and all are started. To end the run instead: orch stop RUN
    """
    from orchestrator.cli.launching.supervise import leave_to_a_watcher, rejoined, see_through, tell_line
    from orchestrator.cli.launching.view import how_to_go_on

    loaded = load_inventory(mode.inventory)
    mode = replace(mode, confirmed=True, inventory=loaded.path.absolute())
    told = (lambda _told: None) if mode.as_json else tell_line
    with rejoined(loaded.inventory, run, mode.engine, told, ask=not mode.as_json, finish=True) as attended:
        plan = attended.plan
        run_id, names = plan.run_id, ", ".join(one.node.name for one in attended.containers)
        say(f"run {run_id} is up on {names}")
        if not mode.detach:
            return see_through(attended, mode)
    if mode.as_json:
        write_json({"run_id": run_id})
    else:
        write_line(run_id)
    leave_to_a_watcher(plan, mode)
    say(how_to_go_on(run_id))
    return EXIT_OK
