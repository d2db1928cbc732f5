"""`orch monitor`: the machines and their run, live."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import known_nodes
from orchestrator.cli.options import InventoryOption, JsonOption, NodesOption, RunArgument
from orchestrator.cli.report import exit_code, invocation, say, write_line
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, PreflightError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from orchestrator.fleet.monitor import FleetWatch
    from orchestrator.specs.inventory import NodeSpec
    from orchestrator.watch.fleet_view import FleetView
    from orchestrator.watch.terminal.feed import LiveFeed

EXAMPLES = """\
orch monitor
orch monitor RUN --interval 5
orch monitor --once -n alpha,beta
orch monitor --json | jq .run.step
"""
PIPE_COLUMNS = 200
FAULTS = 5


def monitor(
    run: RunArgument = None,
    *,
    nodes: NodesOption = None,
    interval: float = typer.Option(2.0, min=0.2, max=3600, metavar="SECONDS", help="Time between two refreshes."),
    once: bool = typer.Option(False, "--once", help="Show one snapshot and exit."),
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> int:
    """Watch the nodes and the run on them: resources, step, time left, loss, speed, and the node that slows it down.

    On a terminal a screen with keys (? shows them); elsewhere a block of lines at each refresh, with --json one object
    on a line. Without a run it shows the nodes, and each run that is launched later. Watching changes nothing.

    Exit code with --once: 0: all nodes answered; 4: none did; 5: some did. Ctrl-C ends the watching; the run continues.
    """
    from orchestrator.fleet.connect import machines_of
    from orchestrator.watch.live import LiveState
    from orchestrator.watch.terminal.feed import LiveFeed

    specs = machines_of(known_nodes(inventory, run, nodes))
    feed = LiveFeed(partial(_watching, specs, run, some=nodes is not None), LiveState(spec.name for spec in specs))
    try:
        if once or as_json or not has_screen():
            return _lines(feed, interval, once=once, as_json=as_json)
        code = _screen(feed, interval)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        return code
    finally:
        feed.close()


def _watching(specs: Sequence[NodeSpec], run: str | None, *, some: bool) -> AbstractContextManager[FleetWatch]:
    """Watch the nodes, or those that hold the run; in the thread that reads them, since the import takes long."""
    from orchestrator.fleet.monitor import watching

    return watching(specs, run, some=some)


def has_screen() -> bool:
    """Return whether the terminal takes a screen: a real one, both ways, whose encoding has the letters of bars."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    encoded = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
    return all(stream.isatty() for stream in streams) and encoded and os.environ.get("TERM", "dumb") != "dumb"


def _screen(feed: LiveFeed, interval: float) -> int:
    from orchestrator.watch.terminal.screen import MonitorApp

    app = MonitorApp(feed, interval_s=interval, login=_login)
    code = app.run()
    if feed.error:
        raise feed.error
    return app.return_code or 0 if code is None else code


def _login(node: str, container: bool) -> tuple[str, ...]:
    """The command line that opens a shell on a node, or in its container."""
    given = invocation.current.inventory
    words = ["shell", node, *(["--container"] if container else []), *(["-i", str(given)] if given else [])]
    return (sys.executable, "-P", "-m", "orchestrator", *words)


def _lines(
    feed: LiveFeed, interval: float, *, once: bool, as_json: bool, rest: Callable[[float], object] = time.sleep
) -> int:
    """Write views to stdout until the end of time, or one."""
    feed.start()
    feed.settle()
    while True:
        shown = feed.view()
        answering = [node for node in shown.nodes if node.answered_s is not None]
        if shown.nodes and not answering and not (shown.run and once):
            names = ", ".join(node.name for node in shown.nodes)
            raise PreflightError(f"no node answered: {names}", hint="orch doctor")
        if as_json:
            write_line(json.dumps(shown.data()))
        else:
            _write(shown)
        sys.stdout.flush()
        if once:
            silent = [node for node in shown.nodes if node.silent or node.answered_s is None]
            for node in silent:
                say(f"note: {node.name} does not answer{': ' + node.problem if node.problem else ''}")
            return exit_code(len(silent), len(shown.nodes)) if shown.nodes else EXIT_OK
        rest(interval)


def _write(shown: FleetView) -> None:
    from rich.console import Group
    from rich.text import Text

    from orchestrator.render.console import show
    from orchestrator.render.times import stamp_of
    from orchestrator.watch.node_table import node_table
    from orchestrator.watch.run_lines import fault_lines, run_lines

    width = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    about = run_lines(shown, width, ascii_only=ascii_only)
    show(Group(Text(stamp_of(shown.at)), *about, node_table(shown.nodes, width), *fault_lines(shown, FAULTS), Text()))
