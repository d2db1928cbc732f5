"""Run a container of the trainer to its end: preparation of data, downloads."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.nodes.interface import Engine
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError, OrchError, PreflightError, RunFailedError, UsageError

ERROR = "error: "
"""Prefix of the trainer's error message; all lines after it belong to that message."""
MOST_LINES = 50
"""Maximum number of lines of that message."""


def run_to_end(
    engine: Engine,
    spec: ContainerSpec,
    on_line: Callable[[str], None],
    *,
    doing: str = "preparing the data",
    node: str = "",
) -> None:
    """Run the container until it ends, then remove it. Its error message becomes the exception, with `node`."""
    container = engine.create(spec)
    wrong: list[str] = []
    try:
        engine.start(container)
        for line in engine.logs(container, follow=True):
            if wrong or line.text.startswith(ERROR):
                wrong.append(line.text)
            else:
                on_line(line.text)
        ended = engine.wait(container)
    finally:
        engine.remove(container)
    if ended.exit_code == 0:
        for text in wrong:
            on_line(text)
        return
    message = "\n".join(wrong[:MOST_LINES]).removeprefix(ERROR)
    kinds: dict[int | None, type[OrchError]] = {
        kind.exit_code: kind for kind in (UsageError, ConfigError, PreflightError)
    }
    if message and ended.exit_code in kinds:
        raise kinds[ended.exit_code](message, node=node)
    raise RunFailedError(message or f"{doing} failed with exit code {ended.exit_code}", node=node)
