"""Words for conditions: each has a sentence and a command that can be pasted, and they stand in one module."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from orchestrator.cli import build_app
from orchestrator.state.condition import Code, Condition, Scalar
from orchestrator.state.verdict import verdict
from orchestrator.watch.words import WORDS, condition_lines, over_words, words
from tests.run_streams import CASES, RUN_ID, T0
from tests.unit.test_one_verdict import state_of

ROOT = Path(__file__).parents[2]
WITHOUT_COMMAND = {Code.SLOW_DATA}
"""Conditions against which no command helps."""
READERS = {"orchestrator/watch/words.py", "orchestrator/watch/views.py", "orchestrator/watch/fleet_view.py"}
"""Modules that may tell codes apart: their words, the word in the row of a node, what a screen groups."""


@pytest.mark.parametrize("code", Code)
def test_each_condition_has_a_sentence_and_a_command_that_exists(code: Code) -> None:
    full: dict[str, Scalar] = {
        "text": "rank 1 is idle", "ratio": 2.0, "share": 0.5, "error": "cut", "attempt": 7, "step": 3, "exit_code": 1,
    }  # fmt: skip
    for node, values in (("al pha", full), ("alpha", {})):
        shown = words(Condition(code=code, severity="warning", node=node, values=values), RUN_ID)
        assert shown.text
        assert not shown.text.endswith(".")
        if code in WITHOUT_COMMAND or (code is Code.NO_EXCHANGE and not shown.command):
            continue
        orch, name, *rest = shlex.split(shown.command, comments=True)
        assert orch == "orch"
        known = build_app(name).commands
        assert name in known, shown.command
        assert not rest or "al pha" in rest or RUN_ID in rest or "alpha" in rest, shown.command


def test_text_of_a_node_is_bounded_and_safe_to_show() -> None:
    values: dict[str, Scalar] = {
        "error": "cut\x1b[2J\nnext " + "x" * 10_000,
        "reason": "\x1b]0;x\x07y",
        "text": "\u202e",
    }
    for code in Code:
        for line in condition_lines(
            Condition(code=code, severity="error", node="b\x1b[1meta", values=values), "r\x1b[2J"
        ):
            assert len(line) < 600
            assert not set(line) & {"\x1b", "\n", "\x07", "\u202e"}, line


def test_a_node_without_a_name_is_none_to_look_at() -> None:
    condition = Condition(code=Code.NODE_SILENT, severity="warning", node="?", values={"error": "beta did not answer"})
    shown = words(condition, RUN_ID)
    assert shown.text == "a node of the run does not answer this computer: beta did not answer"
    assert shown.command == "orch doctor"
    assert over_words(condition) == "a node of the run answers again"


def test_how_long_a_node_has_not_answered() -> None:
    condition = Condition(code=Code.NODE_SILENT, severity="warning", node="beta", since=T0, values={"error": "cut"})
    assert words(condition, RUN_ID, T0 + 125).text == "beta does not answer this computer: cut, for 2.1 min"
    assert words(condition, RUN_ID, T0 + 1).text == "beta does not answer this computer: cut"


def test_the_sentence_on_liveness_is_the_coordinators() -> None:
    make, expected = next(one for one in CASES if one[0].__name__ == "no_network")
    (condition,) = verdict(state_of(make().facts), T0 + expected.at).conditions
    shown = words(condition, RUN_ID)
    assert shown.text == "all ranks are waiting in all_reduce 7 and no data has arrived for 35 s"
    assert shown.command == "orch test"


def test_no_other_module_tells_conditions_apart() -> None:
    assert set(WORDS) == set(Code)
    found = set()
    for path in (ROOT / "orchestrator").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if name in READERS or name.startswith("orchestrator/state/"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code":
                found.add(name)
    assert found <= {f"orchestrator/watch/{name}.py" for name in ("live", "views", "follow_lines")}
