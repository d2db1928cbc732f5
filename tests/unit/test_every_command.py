"""Every command that exists: exit codes, forms of output, narrow and plain terminals, without any machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import build_app
from orchestrator.specs.errors import NodeUnreachableError
from tests import lan
from tests.unit.conftest import THREE, Orch, detached

ROOT = Path(__file__).parents[2]

NOTHING_TO_REACH = {"version", "explain", "prepare", "plan", "checkpoints push", "trust"}
"""Commands that ask no node before they have found something else, and `trust`, which opens its own connections: see
tests/contract/test_ssh.py. `lab` and `inventory` ask none either."""
WORDS = {"resume": ("RUN",), "checkpoints prune": ("RUN", "--keep", "1"), "inventory import": ("hostfile",)}
"""Arguments that a command requires."""


def each_command() -> Iterator[tuple[str, set[str]]]:
    """Every command of the program with its options."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}".strip())
        if not hasattr(command, "commands"):
            yield path, {option for one in command.params for option in one.opts}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_ORCH_COMPLETE", "all commands are loaded")
        yield from walk(build_app(None), "")


OPTIONS = dict(sorted(each_command()))
EVERY = list(OPTIONS)
ASKING = [one for one in EVERY if one not in NOTHING_TO_REACH and one.split()[0] not in ("lab", "inventory")]


@pytest.mark.parametrize("command", ASKING)
def test_4_all_nodes_out_of_reach(orch: Orch, command: str) -> None:
    ran = orch(*command.split(), *WORDS.get(command, ()), on=silent_lan())
    assert ran.code == 4, ran.err
    assert "answer" in ran.out + ran.err


@pytest.mark.parametrize("command", [one for one in EVERY if one != "resume"])  # its COMMAND may have any option
def test_2_an_option_that_no_command_has(orch: Orch, command: str) -> None:
    ran = orch(*command.split(), "--no-such-option")
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("command", [*ASKING, "plan", "inventory list", "inventory show", "inventory validate"])
def test_3_no_inventory(orch: Orch, command: str) -> None:
    for words in ((*command.split(), *WORDS.get(command, ()), "-i", "nowhere.yaml"),
                  ("-i", "nowhere.yaml", *command.split(), *WORDS.get(command, ()))):  # fmt: skip
        ran = orch(*words)
        assert (ran.code, ran.out) == (3, ""), ran.err
        assert "no nowhere.yaml (given by -i)" in ran.err


GROUPS = sorted({words[:-1] for words in map(str.split, EVERY) for words in [tuple(words)] if len(words) > 1})
LISTS = ["status", "runs", "inventory list", "inventory show", "doctor", "explain"]
"""Commands that show a list without anything but the three machines and one run."""


def silent_lan() -> lan.Lan:
    """Three machines that do not answer."""
    here = lan.Lan({name: lan.silent(name) for name in THREE})
    for node in here.nodes.values():
        node.answers[("*",)] = NodeUnreachableError("no answer in 5 s", node=node.name)
    return here


@pytest.mark.parametrize("command", [one for one in EVERY if "--json" in OPTIONS[one] and one != "lab down"])
def test_o_json_is_json(orch: Orch, command: str) -> None:
    words = (*command.split(), *WORDS.get(command, ()))
    as_json, o_json = (orch(*words, *form, on=silent_lan()) for form in (("--json",), ("-o", "json")))
    varying = re.compile(r"[0-9T:.+-]{8,}|[0-9.]+ s|\"(seconds|at)\": .*")
    assert (o_json.code, varying.sub("", o_json.out)) == (as_json.code, varying.sub("", as_json.out))


@pytest.mark.parametrize("command", [one for one in EVERY if "--json" in OPTIONS[one]])
def test_2_another_form(orch: Orch, command: str) -> None:
    ran = orch(*command.split(), *WORDS.get(command, ()), "-o", "xml")
    assert (ran.code, ran.out) == (2, "")
    assert "'xml' is not one of" in ran.err
    assert "Value error" not in ran.err


@pytest.mark.parametrize("command", LISTS)
def test_a_list_as_names_and_with_all_columns(orch: Orch, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.held.clear()
    detached(orch, here) if command in ("status", "runs") else None
    names = orch(*command.split(), "-o", "name", on=here).out.splitlines()
    assert names
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in names)
    wide, plain = orch(*command.split(), "-o", "wide", on=here), orch(*command.split(), on=here)
    assert wide.code == plain.code
    assert set(names) <= set(re.split(r"[\s\[\],:]+", wide.out))
    assert "\x1b" not in wide.out + plain.out
    assert [line for line in (wide.out + plain.out).splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", LISTS)
def test_40_columns_break_no_word(orch: Orch, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = lan.lan(*THREE)
    detached(orch, here) if command in ("status", "runs") else None
    whole = orch(*command.split(), on=here).out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = orch(*command.split(), on=here).out
    assert set(narrow.split()) - set(whole.split()) - numbers(narrow) == set()
    if "inventory" in command or command in ("status", "runs"):
        assert [line for line in narrow.splitlines() if len(line) > 40] == []


def numbers(text: str) -> set[str]:
    """Words that hold a figure, such as seconds, which differ from call to call."""
    return {word for word in text.split() if re.search(r"[0-9]", word)}


@pytest.mark.parametrize("command", [*EVERY, *map(" ".join, GROUPS), ""])
def test_help(orch: Orch, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help shows no Python type, has an example, and no line longer than a narrow terminal but for its examples."""
    shown = orch(*command.split(), "--help").out
    assert re.findall(r"<.*?>|\bTEXT\b|\bINTEGER\b|\bPATH\b(?!\b)", shown.replace("spanish|PATH", "")) == []
    assert f"orch {command}".strip() in shown.split("\n", 1)[1]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = orch(*command.split(), "--help").out
    assert [line for line in narrow.splitlines() if len(line) > 40 and len(line.split()) > 1] == []
    assert "".join(narrow.split()) == "".join(shown.split())


@pytest.mark.parametrize(
    "words", [("--help",), ("explain",), ("explain", "clock.skew"), ("inventory", "list"), ("doctor", "--help")]
)
def test_a_terminal_with_ascii_only(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "inventory.yaml").write_text("nodes:\n  alpha: {address: 127.0.0.1, labels: {room: caf\u00e9}}\n")
    ran = subprocess.run(
        (sys.executable, "-c", "from orchestrator.cli import run; run()", *words, *(["-i", "inventory.yaml"] * (words[0] == "inventory"))),
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.isascii()
