"""Prepare training data once for all nodes, in the image that will train."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.nodes.interface import Engine
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError, RunFailedError, UsageError

ERROR = "error: "
"""Prefix of the trainer's error message; all lines after it belong to that message."""
MOST_LINES = 50
"""Maximum number of lines of that message."""


def prepare(engine: Engine, spec: ContainerSpec, on_line: Callable[[str], None]) -> None:
    """Run the container until it ends, then remove it. Its error message becomes the exception."""
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
    kinds = {kind.exit_code: kind for kind in (UsageError, ConfigError)}
    if message and ended.exit_code in kinds:
        raise kinds[ended.exit_code](message)
    raise RunFailedError(message or f"preparing the data failed with exit code {ended.exit_code}")
