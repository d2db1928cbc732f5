"""`orch tensorboard`: TensorBoard for runs, where their files are, at a port of this computer."""

from __future__ import annotations

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption
from orchestrator.cli.report import report_errors, say, write_line
from orchestrator.specs.errors import EXIT_OK, ConfigError

EXAMPLES = """\
orch tensorboard
orch tensorboard RUN1 RUN2 --open
orch tensorboard RUN --port 6006
"""


def tensorboard(
    runs: list[str] | None = typer.Argument(
        None, metavar="[RUN]...", help="Run ids, or their first characters (default: the newest run)."
    ),
    port: int = typer.Option(0, min=0, max=65535, metavar="PORT", help="Port of this computer (default: a free one)."),
    open_browser: bool = typer.Option(False, "--open", help="Open the browser."),
    inventory: InventoryOption = None,
) -> int:
    """Show the TensorBoard files of runs, active or ended, until Ctrl-C.

    TensorBoard runs on the node that holds the files, in the run's image and without a network; this computer's port
    leads there over the usual connection. Files of several nodes are brought together. Nothing is left on the node.
    """
    from orchestrator.fleet.checkpoints.survey import places_in, places_of
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.runs.records import RunRecord
    from orchestrator.fleet.tensorboard import Board, event_files, image_candidates, run_ids
    from orchestrator.specs.request import LaunchRequest

    loaded = load_inventory(inventory).inventory
    wanted = list(runs or ())
    with connected_for(loaded.nodes, wanted[0] if wanted else None) as nodes:
        ids = run_ids(nodes, wanted)
        places = dict(places_in(loaded.nodes, loaded.project))
        for plan in filter(None, (RunRecord(run).plan() for run in ids)):
            places |= places_of(plan)
        known = [node for node in nodes if node.name in places]
        found, silent = event_files(known, places, ids)
        report_errors(silent.values())
        lacking = [run for run in ids if run not in {one.run_id for one in found}]
        if not found:
            raise ConfigError(
                f"no node that answered has TensorBoard files of {', '.join(ids) or 'any run'}", hint="orch runs"
            )
        if lacking:
            say(f"note: no TensorBoard files of {', '.join(lacking)}")
        request = LaunchRequest(project=loaded.project, nodes=())
        tags = [request.image_tag("cpu"), request.image_tag("cuda")]
        board = Board(known, found, [*image_candidates(ids, found[0].node), *tags], port)
        url = f"http://127.0.0.1:{board.port}/"
        say(f"starting TensorBoard on {board.node.name} …")
        if board.copied_from:
            say(f"files of {', '.join(board.copied_from)} are copied there, and what is added to them")

        def ready() -> None:
            write_line(url)
            say("until Ctrl-C")
            if open_browser:
                import webbrowser

                webbrowser.open(url)

        try:
            board.serve(ready)
        except KeyboardInterrupt:
            say(f"ended; nothing is left on {board.node.name}")
    return EXIT_OK
