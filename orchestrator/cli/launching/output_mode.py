"""How a command that starts or follows a run proceeds, and where its output goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from orchestrator.cli.options import (
    DetachOption,
    EngineOption,
    InventoryOption,
    JsonOption,
    NoWatchOption,
    YesOption,
)


@dataclass(frozen=True, kw_only=True)
class OutputMode:
    """The options of one invocation: nothing of them is kept with the run."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Measure for seconds, show how fast the run would be, and end.")
    ] = False
    """Whether to measure only, and to leave nothing on the nodes."""
    as_json: JsonOption = False
    detach: DetachOption = False
    no_watch: NoWatchOption = False
    """Whether a run that is left on its own gets no watcher."""
    confirmed: YesOption = False
    """Whether all questions are answered with yes."""
    inventory: InventoryOption = None
    engine: EngineOption = ""
