"""Prepare training data once, in the image that will train, for all nodes to be given."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.nodes.seam import Engine, LogLine
from orchestrator.specs.errors import ConfigError, RunFailedError
from orchestrator.specs.plan import ContainerSpec

TRAINER_CONFIG_ERROR = 3


def prepare(engine: Engine, spec: ContainerSpec, on_line: Callable[[LogLine], None]) -> None:
    """Run the container to its end; it is removed whatever happens. Raises with its last line where it fails."""
    container = engine.create(spec)
    last = ""
    try:
        engine.start(container)
        for line in engine.logs(container, follow=True):
            on_line(line)
            last = line.text or last
        ended = engine.wait(container)
    finally:
        engine.remove(container)
    if ended.exit_code == TRAINER_CONFIG_ERROR:
        raise ConfigError(f"preparing the data failed: {last}")
    if ended.exit_code != 0:
        raise RunFailedError(f"preparing the data failed with exit code {ended.exit_code}: {last}")
