"""Events change the state of a run in `orchestrator/state` alone; every screen reads that state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from contract import events

ROOT = Path(__file__).parents[2]
EVENTS = {name for name, one in vars(events).items() if isinstance(one, type) and issubclass(one, events.Event)}
ELSEWHERE = {
    "checks/line_levels.py": "a line that holds a fault has the level of an error",
    "cli/launching/view.py": "a state of a progress bar is a line",
    "render/log_lines.py": "a state of a progress bar is a line",
    "render/recovery.py": "the words for one event, where lines are followed",
    "watch/timeline.py": "the words for one event, in the order of time",
    "fleet/runs/load_state.py": "the kinds that are loaded, and the line at which the search for a forecast ends",
    "store/run_record.py": "a checkpoint is recorded before anything is shown",
}
"""Modules of the orchestrator that tell kinds of events apart, each with its reason."""


def kinds_matched(tree: ast.AST) -> Iterator[str]:
    """Kinds of events that a module tells apart: by `isinstance`, by `case`, or by asking the record for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            yield node.cls.id
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            yield from (one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "events":
            yield from (one.id for argument in node.args for one in ast.walk(argument) if isinstance(one, ast.Name))


def test_only_the_state_tells_kinds_of_events_apart() -> None:
    found = set()
    for path in (ROOT / "orchestrator").rglob("*.py"):
        if EVENTS & set(kinds_matched(ast.parse(path.read_text(encoding="utf-8")))):
            found.add(path.relative_to(ROOT / "orchestrator").as_posix())
    elsewhere = {name for name in found if not name.startswith("state/")}
    assert elsewhere == set(ELSEWHERE), "read the state of the run, or give the reason"
