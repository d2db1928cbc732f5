"""`orch dashboard`: machines, runs, curves and logs on a local web page."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.context import known_nodes, load_inventory
from orchestrator.cli.options import InventoryOption, NodesOption, RunArgument
from orchestrator.cli.report import invocation, say, write_line
from orchestrator.specs.errors import EXIT_OK, ConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from orchestrator.specs.inventory import NodeSpec
    from orchestrator.watch.server.address import WebAddress

EXAMPLES = """\
orch dashboard
orch dashboard RUN --open
orch dashboard --port 8642 -n alpha,beta
orch dashboard --bind 192.168.1.5 --tls-cert cert.pem --tls-key key.pem
"""
NEEDED = ("starlette", "uvicorn")


def dashboard(
    run: RunArgument = None,
    nodes: NodesOption = None,
    port: int = typer.Option(0, min=0, max=65535, metavar="PORT", help="Port of this computer (default: a free one)."),
    bind: str = typer.Option(
        "127.0.0.1", "--bind", metavar="ADDRESS", help="Address to listen on; other than 127.0.0.1 only with TLS."
    ),
    tls_cert: Path | None = typer.Option(None, "--tls-cert", metavar="FILE", help="Certificate in PEM."),
    tls_key: Path | None = typer.Option(None, "--tls-key", metavar="FILE", help="Its key in PEM."),
    open_browser: bool = typer.Option(False, "--open", help="Open the browser."),
    inventory: InventoryOption = None,
) -> int:
    """Show nodes, runs, curves, logs, checkpoints and findings on a local web page, until Ctrl-C.

    The printed address holds a token: whoever has it sees the page, and can stop and restart runs there. Viewing
    changes nothing. Nothing is loaded from another host. From another computer, use the SSH tunnel that is printed.
    """
    from orchestrator.watch.server.address import listening_socket, web_address

    require_web_server()
    address = web_address(bind, port, tls_cert, tls_key)
    chosen = _chosen(inventory, run, nodes)
    with suppress(KeyboardInterrupt), listening_socket(address) as listening:
        _serve(chosen, address, listening, open_browser=open_browser)
    say("\nthe dashboard has ended; runs continue")
    return EXIT_OK


def require_web_server() -> None:
    """ConfigError: packages of the server, which are an extra, are not installed."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"orch {invocation.current.command} needs {' and '.join(missing)}, which are an extra of this package",
            hint="in the clone of orch: uv tool install '.[dashboard]'   # or: pip install '.[dashboard]'",
        )


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """Nodes and run to show."""

    specs: Sequence[NodeSpec]
    run: str | None
    project: str = ""
    inventory: Path | None = None
    """None: it is gone, and only the records are left."""
    some: bool = False
    """True if these are a choice of nodes, and others may hold ranks, too."""


def _chosen(inventory: Path | None, run: str | None, nodes: str | None) -> _Chosen:
    from orchestrator.fleet.connect import machines_of

    try:
        loaded = load_inventory(inventory)
    except ConfigError:
        return _Chosen(specs=machines_of(known_nodes(inventory, run, nodes)), run=run, some=nodes is not None)
    project, path = loaded.inventory.project, loaded.path.absolute()
    return _Chosen(specs=loaded.select(nodes), run=run, project=project, inventory=path, some=nodes is not None)


def _serve(chosen: _Chosen, address: WebAddress, listening: socket.socket, *, open_browser: bool) -> None:
    import secrets

    from orchestrator.watch.server.address import tunnel_line
    from orchestrator.watch.server.serving import serve, web_parts

    parts = web_parts(
        chosen.specs, chosen.run, project=chosen.project, inventory=chosen.inventory, some=chosen.some,
    )  # fmt: skip
    token, port = secrets.token_urlsafe(24), listening.getsockname()[1]
    url = address.url(port, token)
    write_line(url)
    sys.stdout.flush()
    if address.is_loopback:
        say(f"from another computer, first there: {tunnel_line(port)}")
    say("until Ctrl-C; whoever has the address can look, and stop and restart runs")
    if open_browser:
        import webbrowser

        webbrowser.open(url)
    serve(parts, address, token, listening)
