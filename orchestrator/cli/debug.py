"""`-v` and `--debug`: the calls to nodes with their times, on stderr or in a file for bug reports."""

from __future__ import annotations

import logging
import os
import platform
import time
from importlib import metadata

from platformdirs import user_state_path

from orchestrator import __version__
from orchestrator.cli.report import Invocation
from orchestrator.nodes.call_log import redacted_words
from orchestrator.render.printable import printable
from orchestrator.specs.secret import concealed, veil_over
from orchestrator.specs.secret_forms import hide_secrets

LOG = logging.getLogger("orch")
LIBRARIES = ("typer", "rich", "pydantic", "fabric", "paramiko", "docker")


class _Redacting(logging.Formatter):
    """Hides the values of sensitive environment variables, and what has the form of a secret."""

    def __init__(self, layout: str) -> None:
        super().__init__(layout)
        self._veil = veil_over(concealed(os.environ).values())

    def format(self, record: logging.LogRecord) -> str:
        text = hide_secrets(self._veil.hide(super().format(record)))
        return "\n".join(map(printable, text.split("\n")))


def show_calls(invocation: Invocation) -> None:
    """Log calls to stderr until the invocation ends."""
    _attach(invocation, logging.StreamHandler(), "%(message)s")


def begin_file(invocation: Invocation) -> None:
    """Log versions, the command line, the inventory and calls to a new file (mode 0600) until the invocation ends."""
    if invocation.debug_file:
        return
    folder = user_state_path("orch") / "debug"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"orch-debug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}.txt"
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    invocation.debug_file = file
    _attach(invocation, logging.FileHandler(file, encoding="utf-8"), "%(asctime)s.%(msecs)03d %(message)s")
    LOG.info("orch %s, Python %s, %s", __version__, platform.python_version(), platform.platform())
    LOG.info(", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES))
    LOG.info("command line: orch %s", redacted_words(invocation.words))


def _attach(invocation: Invocation, handler: logging.Handler, layout: str) -> None:
    handler.setFormatter(_Redacting(layout))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False

    def detach() -> None:
        LOG.removeHandler(handler)
        handler.close()
        if not LOG.handlers:
            LOG.setLevel(logging.NOTSET)
            LOG.propagate = True

    invocation.closing.callback(detach)
