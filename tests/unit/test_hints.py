"""Hints are lines to paste: every `orch …` in one is understood by the program's own parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko

import orchestrator
from orchestrator.cli import COMMANDS
from orchestrator.nodes.ssh_login import Attempt, Keys, refusal
from tests import lan
from tests.each_case import failures_of
from tests.unit.programs import MISSING, refusal_of, words_of

PACKAGE = Path(orchestrator.__file__).parent
LINE = re.compile(r"(?:^|[\s(`:→])(orch (?:" + "|".join(COMMANDS) + r")\b[^`;→\n]*)")
END = re.compile(r"   |, |: | \(|\)|…| orch ")
"""Pattern of what follows a line: prose, or another line."""
PROPOSED = re.compile(r"→ orch|^orch [^\n]*$")
SEVERAL = {"orch lab 3", "orch doctor 3"}
"""Lines in which the value is a command of its own, or an option with its value."""


def _text(node: ast.expr) -> str:
    """The string as it would come out, with a number in the place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "3" for part in node.values)  # type: ignore[misc]  # of an f-string
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return ""


def hints() -> Iterator[tuple[str, str]]:
    """File with line, and the `orch …` of each hint, fix and arrow in the package."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
            id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
        }
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            named = isinstance(node, ast.keyword) and node.arg in ("hint", "fix")
            text = _text(node.value) if isinstance(node, ast.keyword) and named else ""
            if isinstance(node, ast.Constant | ast.JoinedStr) and PROPOSED.search(entry := _text(node)):
                text = entry
            for line in LINE.findall(text):
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}", END.split(line)[0].split(" # ")[0].strip(" .,")


def test_every_line_of_a_hint_is_understood() -> None:
    found = sorted(one for one in set(hints()) if one[1] not in SEVERAL)
    assert len(found) > 60
    assert failures_of(check_line, found) == []


def check_line(_place: str, line: str) -> None:
    assert refusal_of(words_of(line)[1:]) in ("", MISSING)


def test_a_changed_key_of_a_jump_host_is_accepted_by_a_login_there() -> None:
    """`orch trust` of the machine behind it would ask that machine."""
    new, old = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    error = paramiko.BadHostKeyException("bastion.lan", new, old)
    keys = Keys(files=(), in_agent=frozenset())
    there = Attempt(spec=lan.spec("alpha"), user="ana", error=error, waited_s=0.1, keys=keys)
    assert refusal(there).hint.endswith("then: orch trust -n alpha")
    jump = replace(there, accept_by="ssh -p 22 ana@bastion.lan true")
    assert refusal(jump).hint.endswith("then: ssh -p 22 ana@bastion.lan true")
