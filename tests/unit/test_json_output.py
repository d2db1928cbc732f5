"""The JSON of every command: what the published schema and docs/cli.md say of it.

`json_data` in the tests of each command validates the output itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import build_app
from tests import lan
from tests.json_output import SCHEMA, json_data
from tests.unit.conftest import THREE, Orch, detached

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
STREAMS = {"logs", "monitor"}
"""One object per line, without the envelope."""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every command that has `--json`."""

    def walk(command: Any, path: str) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}")
        if any("--json" in one.opts for one in command.params):
            yield path.strip()

    monkeypatch.setenv("_ORCH_COMPLETE", "all commands are loaded")
    return set(walk(build_app(None), ""))


def test_the_schema_describes_every_command(commands: set[str]) -> None:
    described = {rule["if"]["properties"]["command"]["const"] for rule in SCHEMA["allOf"]}
    assert described == set(SCHEMA["properties"]["command"]["enum"]) == commands - STREAMS


def test_the_page_names_every_command(commands: set[str]) -> None:
    text = PAGE.read_text().partition("## JSON\n")[2]
    assert {one for one in commands if f"`{one}`" not in text} == set()


@pytest.mark.parametrize(
    "words",
    [("status",), ("runs",), ("wait",), ("why",), ("clean",), ("inventory", "list"), ("explain",),
     ("inventory", "show"), ("inventory", "show", "beta"), ("explain", "clock.skew"), ("resume", "", "--dry-run")],
)  # fmt: skip
def test_what_commands_write_is_what_the_schema_says(orch: Orch, words: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    run = detached(orch, here)
    ran = orch(*(word or run for word in words), "--json", on=here)
    assert json_data(ran.out), ran.err
