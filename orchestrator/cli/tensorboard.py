"""`orch tensorboard`: the event files of runs, copied to this computer, in the user's own TensorBoard."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, RunsArgument
from orchestrator.cli.report import say, say_once
from orchestrator.render.console import write_plain
from orchestrator.specs.errors import RunFailedError

EXAMPLES = "orch tensorboard\norch tensorboard RUN1 RUN2 --open\norch tensorboard RUN --port 6006"
START_S, EVERY_S = 0.2, 30.0
INSTALL = "not installed? uv tool install tensorboard   # or, in your own environment: pip install tensorboard"


def tensorboard(
    runs: RunsArgument = None,
    port: int = typer.Option(0, min=0, max=65535, metavar="PORT", help="Port of this computer (default: a free one)."),
    open_browser: bool = typer.Option(False, "--open", help="Open the browser."),
    inventory: InventoryOption = None,
) -> None:
    """Show the event files of runs, active or ended, in the TensorBoard of this computer, until Ctrl-C.

    They are copied from the nodes, and every 30 seconds what was added to them. Nothing is started on a node.
    """
    from orchestrator.fleet.checkpoints.survey import places_for
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.tensorboard import EventFiles
    from orchestrator.watch.server.address import LOOPBACK_NAMES, WebAddress, listening_socket

    loaded, words, wait_s = load_inventory(inventory).inventory, runs or [""], START_S
    with listening_socket(WebAddress(host="127.0.0.1", port=port, names=LOOPBACK_NAMES)) as free:
        host, port = free.getsockname()
    program = ("tensorboard",) if shutil.which("tensorboard") else ("python3", "-m", "tensorboard.main")
    argv = (*program, "--logdir", ".", "--host", host, "--port", str(port))
    with connected_for(loaded.holders, words[0] or None) as nodes, TemporaryDirectory(prefix="orch-board-") as board:
        files = EventFiles(nodes, {word: places_for(loaded.holders, loaded.project, word) for word in words})
        files.link(board, say)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # TensorBoard ends with the command
        with Popen(argv, cwd=board) as process, suppress(KeyboardInterrupt):
            try:
                while True:
                    with suppress(TimeoutExpired):
                        raise RunFailedError(f"TensorBoard ended with exit code {process.wait(wait_s)}", hint=INSTALL)
                    if wait_s == EVERY_S:
                        files.copy(say_once)
                        continue
                    with suppress(OSError), socket.create_connection((host, port), 1):
                        wait_s = EVERY_S
                        write_plain(f"http://{host}:{port}/")
                        if open_browser:
                            typer.launch(f"http://{host}:{port}/")
            finally:
                process.terminate()
