"""`orch metrics`: figures of the machines and of the running runs for Prometheus."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import load_inventory
from orchestrator.cli.options import InventoryOption, NodesOption
from orchestrator.cli.report import exit_code, report_errors, say
from orchestrator.specs.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Set
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EXAMPLES = """\
orch metrics
orch metrics --listen 127.0.0.1:9464
"""
FRESH_S = 5.0
"""Age up to which figures are served again: nodes are asked no more often, however many ask."""
SILENT_S = 10.0
"""Time in which a client sends its request."""


def metrics(
    listen: str | None = typer.Option(
        None, metavar="ADDRESS:PORT", help="Serve /metrics there until Ctrl-C, such as 127.0.0.1:9464."
    ),
    expose: bool = typer.Option(
        False, "--expose", help="Allow an address that other machines reach: there is neither a password nor TLS."
    ),
    nodes: NodesOption = None,
    inventory: InventoryOption = None,
) -> int:
    """Write figures of the machines and of the running runs in Prometheus' text format, or serve them.

    Exit code 4: no node answered; 5: some did not. In the figures, their orch_node_up is 0.
    """
    import sys

    from orchestrator.fleet.connect import connected
    from orchestrator.fleet.runs.load_state import collect_figures
    from orchestrator.render.prometheus import exposition

    place = _place(listen, expose=expose) if listen is not None else None
    specs = load_inventory(inventory).select(nodes)
    with connected(specs) as reached:
        if place is None:
            figures = collect_figures(reached, some=nodes is not None)
            sys.stdout.write(exposition(figures))
            report_errors(figures.unreachable.values())
            return exit_code(len(figures.unreachable), len(specs))
        with server(place, lambda: exposition(collect_figures(reached, some=nodes is not None))) as serving:
            host, port = serving.server_address[:2]
            say(f"serving http://{host!s}:{port}/metrics until Ctrl-C")
            serving.serve_forever()
    return 0


def _place(listen: str, *, expose: bool) -> tuple[str, int]:
    """Return address and port. UsageError: they are none, or other machines reach them and --expose is not given."""
    host, _, port = listen.rpartition(":")
    try:
        address = ipaddress.IPv4Address("127.0.0.1" if host in ("", "localhost") else host)
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError
    except ValueError:
        raise UsageError(f"--listen {listen}: expected an IPv4 address and a port, such as 127.0.0.1:9464") from None
    if not address.is_loopback and not expose:
        raise UsageError(
            f"--listen {listen}: other machines reach this address, and /metrics has neither a password nor TLS",
            hint=f"--listen 127.0.0.1:{number} and a tunnel (ssh -L), or --expose in a network that you trust",
        )
    return str(address), number


def server(place: tuple[str, int], collect: Callable[[], str]) -> ThreadingHTTPServer:
    """A server of /metrics at this address, for `serve_forever`. ConflictError: the port is taken."""
    from http.server import ThreadingHTTPServer

    loopback = ipaddress.IPv4Address(place[0]).is_loopback
    try:
        serving = ThreadingHTTPServer(place, _requests(collect, {"127.0.0.1", "localhost"} if loopback else set()))
    except OSError as error:
        raise ConflictError(
            f"{place[0]}:{place[1]} cannot be listened on: {error.strerror or error}", hint="another port: --listen"
        ) from None
    serving.daemon_threads = True
    return serving


def _requests(collect: Callable[[], str], own: Set[str]) -> type[BaseHTTPRequestHandler]:
    """Class that answers requests. `own`: names of this computer that a request must name; empty for any."""
    import time
    from http.server import BaseHTTPRequestHandler
    from threading import Lock

    from orchestrator.render.prometheus import CONTENT_TYPE

    lock = Lock()
    newest: list[tuple[float, bytes]] = []

    def current() -> bytes:
        with lock:  # one collection at a time
            if not newest or time.monotonic() - newest[0][0] > FRESH_S:
                newest[:] = [(time.monotonic(), collect().encode())]
            return newest[0][1]

    class Requests(BaseHTTPRequestHandler):
        timeout = SILENT_S
        server_version, sys_version = "orch", ""

        def do_GET(self) -> None:
            if own and self.headers.get("Host", "").rpartition(":")[0] not in own:
                self.send_error(403)  # a page of another origin, by a name that leads here
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
            else:
                try:
                    content = current()
                except Exception as error:
                    say(f"figures could not be collected: {type(error).__name__}: {error}")
                    self.send_error(500)
                    return
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002  # of the base class
            return

    return Requests
