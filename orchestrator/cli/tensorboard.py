"""`orch tensorboard`: the event files of runs, copied to this computer, in the user's own TensorBoard."""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from threading import Thread

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.dashboard import require_web_server
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

    They are copied from the nodes, and updated every 30 seconds. Nothing is started on a node. The
    address holds a token: other users and other pages cannot read the page.
    """
    from orchestrator.fleet.checkpoints.survey import places_for
    from orchestrator.fleet.connect import connected_for
    from orchestrator.fleet.tensorboard import EventFiles

    require_web_server()
    from orchestrator.watch.server.board import PROGRAM, board_words

    loaded, words, wait_s = load_inventory(inventory).inventory, runs or [""], START_S
    with (
        connected_for(loaded.holders, words[0] or None) as nodes,
        TemporaryDirectory(prefix="orch-board-") as board,
        TemporaryDirectory(prefix="orch-board-") as beside,  # of mode 0700: no other user opens what is in it
    ):
        socket_file = Path(beside, "socket")
        with _guarded(socket_file, port) as (url, tunnel):
            files = EventFiles(nodes, {word: places_for(loaded.holders, loaded.project, word) for word in words})
            files.link(board, say)
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # TensorBoard ends with the command
            argv = (python_of_tensorboard(), "-c", PROGRAM, *board_words(socket_file))
            with Popen(argv, cwd=board) as process, suppress(KeyboardInterrupt):
                try:
                    while True:
                        with suppress(TimeoutExpired):
                            code = process.wait(wait_s)
                            raise RunFailedError(f"TensorBoard ended with exit code {code}", hint=INSTALL)
                        if wait_s == EVERY_S:
                            files.copy(say_once)
                        elif socket_file.exists():
                            wait_s = EVERY_S
                            write_plain(url)
                            say(f"from another computer, first there: {tunnel}")
                            if open_browser:
                                typer.launch(url)
                finally:
                    process.terminate()


@contextmanager
def _guarded(socket_file: Path, port: int) -> Iterator[tuple[str, str]]:
    """Pass on what comes with the token; yield the address to open, and the line for another computer."""
    from orchestrator.watch.server.address import WebAddress, listening_socket, tunnel_line
    from orchestrator.watch.server.board import BOARD_HOST
    from orchestrator.watch.server.serving import board_server

    address, token = WebAddress(host=BOARD_HOST, port=port, names=frozenset({BOARD_HOST})), secrets.token_urlsafe(24)
    with listening_socket(address) as listening:
        number = listening.getsockname()[1]
        server = board_server(socket_file, address, token)
        serving = Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
        serving.start()
        try:
            yield address.url(number, token), tunnel_line(number, at=BOARD_HOST)
        finally:
            server.should_exit = True
            serving.join()


def python_of_tensorboard() -> str:
    """The Python that runs the `tensorboard` of the PATH, otherwise the user's own one."""
    if program := shutil.which("tensorboard"):
        with Path(program).open("rb") as script:
            first = script.readline(4096).decode("utf-8", "replace")
        words = first.removeprefix("#!").split()
        if first.startswith("#!/") and "python" in Path(words[0]).name:
            return words[0]
        beside = Path(program).resolve().with_name("python")  # its path was too long for a first line
        if beside.exists():
            return str(beside)
    return "python3"
