"""Merged logs: `[2 gamma] text`, padded and coloured by node_rank."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.text import Text

from orchestrator.render.console import colour_of, printable
from orchestrator.specs.event import MARK, parse_event
from orchestrator.specs.happening import Said


def is_event(said: Said) -> bool:
    """Events are for programs; `--json` shows them."""
    return said.text.startswith(MARK)


def log_line(said: Said, *, width: int, several_ranks: bool = False) -> Text:
    """One line; `width` is that of the longest node name. The rank is shown where nodes have several."""
    who = f"{said.node_rank} {said.node:<{width}}"
    if several_ranks:
        who += f" r{said.rank}" if said.rank is not None else "   "
    return Text.assemble((f"[{who}]", colour_of(said.node_rank)), " ", printable(said.text))


def log_json(said: Said) -> str:
    """One line as JSON; an event comes parsed, under `event`."""
    event = parse_event(said.text, said.rank)
    extra = {"event": {"kind": event.kind, **event.values}} if event else {}
    return json.dumps({**asdict(said), **extra}, ensure_ascii=False)
