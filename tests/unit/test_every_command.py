"""Every command that exists: exit codes, forms of output, narrow and plain terminals, without any machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from orchestrator.cli import build_app
from orchestrator.specs.errors import NodeUnreachableError
from tests import lan
from tests.each_case import failures_of
from tests.json_output import json_data
from tests.unit.conftest import THREE, Orch, detached

ROOT = Path(__file__).parents[2]

NOTHING_TO_REACH = {
    "version", "explain", "docs", "prepare", "plan", "checkpoints push", "trust", "shell", "init", "runs diff",
    "runs rerun", "report", "search", "export jobset", "dashboard",
}  # fmt: skip
"""Commands that ask no node before they have found something else, `dashboard`, whose page says which nodes do not
answer, and `trust`, `init` and `shell`, which open their own connections: see tests/contract/test_ssh.py and
test_init.py, tests/unit/test_exec.py. `lab` and `inventory` ask none either."""
WORDS = {
    "resume": ("RUN",),
    "runs diff": ("RUN", "OTHER"),
    "runs rerun": ("RUN",),
    "exec": ("RUN", "true"),
    "shell": ("alpha",),
    "sample": ("RUN", "--prompt", "Once"),
    "predict": ("RUN", "inventory.yaml"),
    "uninstall": ("--dry-run", "-n", "3"),
    "checkpoints prune": ("RUN", "--keep", "1"),
    "inventory import": ("hostfile",),
    "search": ("nan",),
    "export jobset": ("-n", "2"),
}
"""Arguments that a command requires."""


def each_command() -> Iterator[tuple[str, set[str]]]:
    """Every command of the program with its options."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}".strip())
        if not hasattr(command, "commands") or (path and command.invoke_without_command):
            yield path, {option for one in command.params for option in one.opts}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_ORCH_COMPLETE", "all commands are loaded")
        yield from walk(build_app(None), "")


OPTIONS = dict(sorted(each_command()))
EVERY = list(OPTIONS)
ASKING = [one for one in EVERY if one not in NOTHING_TO_REACH and one.split()[0] not in ("lab", "inventory")]


@pytest.mark.parametrize("words", ["status", "shell 1", "cut 1", "heal 1", "kill 1", "start 1", "link off"])
def test_3_no_lab(orch: Orch, words: str) -> None:
    ran = orch("lab", *words.split())
    assert (ran.code, ran.out, ran.err) == (3, "", "error: no lab is up\n  → orch lab up --nodes 5\n")


def silent_lan() -> lan.Lan:
    """Three machines that do not answer."""
    here = lan.Lan({name: lan.silent(name) for name in THREE})
    for node in here.nodes.values():
        node.answers[("*",)] = NodeUnreachableError("no answer in 5 s", node=node.name)
    return here


@pytest.mark.parametrize("command", ASKING)
def test_4_all_nodes_out_of_reach(orch: Orch, command: str) -> None:
    ran = orch(*command.split(), *WORDS.get(command, ()), on=silent_lan())
    assert ran.code == 4, ran.err
    assert "answer" in ran.out + ran.err


def test_2_an_option_that_no_command_has(orch: Orch) -> None:
    def check(command: str) -> None:
        ran = orch(*command.split(), "--no-such-option")
        assert (ran.code, ran.out) == (2, "")

    assert failures_of(check, [one for one in EVERY if one != "resume"]) == []  # its COMMAND may have any option


def test_3_no_inventory(orch: Orch) -> None:
    def check(*words: str) -> None:
        ran = orch(*words)
        assert (ran.code, ran.out) == (3, ""), ran.err
        assert "no nowhere.yaml (given by -i)" in ran.err

    nowhere = ("-i", "nowhere.yaml")
    for command in (*ASKING, "plan", "inventory list", "inventory show", "inventory validate"):
        words, more = command.split(), WORDS.get(command, ())
        assert failures_of(check, [(*words, *nowhere, *more), (*nowhere, *words, *more)]) == []


LOOKING_FIRST = (
    "exec", "logs", "restart", "resume", "runs rerun", "search", "lab up", "export jobset",
)  # fmt: skip
CHOOSING = [one for one in EVERY if "--nodes" in OPTIONS[one] and one not in LOOKING_FIRST]
"""Commands that choose nodes of the inventory at once: some look for a run first; `lab up` and the
exports for Kubernetes take a count."""


@pytest.mark.parametrize("choice", ["alpah", "alpha,alpah", "!alpah", "2,!alpah"])
def test_3_a_node_that_the_inventory_does_not_have(orch: Orch, choice: str) -> None:
    def check(command: str) -> None:
        words = ("--dry-run",) if command == "uninstall" else ()
        ran = orch(*command.split(), *words, "-n", choice, on=lan.lan(*THREE))
        assert ran.code == 3, ran.out + ran.err
        assert "no node 'alpah'" in ran.err
        assert "did you mean 'alpha'" in ran.err

    assert failures_of(check, CHOOSING) == []


def test_nodes_has_the_same_short_form_on_every_command() -> None:
    assert [one for one in EVERY if "--nodes" in OPTIONS[one] and "-n" not in OPTIONS[one]] == []


GROUPS = sorted({command.split()[0] for command in EVERY if " " in command})
LISTS = ["status", "runs", "inventory list", "inventory show", "doctor", "explain"]
"""Commands that show a list without anything but three machines and a run."""


@pytest.fixture
def here(orch: Orch) -> lan.Lan:
    """Three machines, one run, and something for `doctor` to find."""
    three = lan.lan(*THREE, ends_with=None)
    detached(orch, three)
    three.nodes["gamma"].engine.held.clear()
    return three


def test_2_another_form(orch: Orch) -> None:
    def check(command: str) -> None:
        ran = orch(*command.split(), "-o", "xml", *WORDS.get(command, ()))
        assert (ran.code, ran.out) == (2, "")
        assert "'xml' is not one of" in ran.err
        assert "Value error" not in ran.err

    assert failures_of(check, [one for one in EVERY if "--json" in OPTIONS[one]]) == []


@pytest.mark.parametrize("command", LISTS)
def test_the_forms_of_a_list(orch: Orch, here: lan.Lan, command: str) -> None:
    forms = {form: orch(*command.split(), *form.split(), on=here) for form in ("", "-o wide", "-o name", "-o json")}
    assert len({ran.code for ran in forms.values()}) == 1
    assert json_data(forms["-o json"].out)
    names = forms["-o name"].out.splitlines()
    assert names
    assert set(names) <= set(re.split(r"[\s\[\],:]+", forms["-o wide"].out))
    for text in (forms[""].out, forms["-o wide"].out, forms["-o name"].out):
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", LISTS)
def test_40_columns_break_no_word(orch: Orch, here: lan.Lan, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = orch(*command.split(), on=here).out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = orch(*command.split(), on=here).out
    assert [word for word in set(narrow.split()) - set(whole.split()) if not re.search("[0-9]", word)] == []
    if command != "doctor":  # its commands stay on one line, to be copied
        assert [line for line in narrow.splitlines() if len(line) > 40] == []


def test_help(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help has an example, shows no Python type, fits any encoding, and breaks no word and no example when narrow."""

    def check(command: str) -> None:
        shown = orch(*command.split(), "--help").out
        assert shown.isascii()
        assert re.findall(r"<.*?>|TEXT|INTEGER|FLOAT|range", shown) == []
        options, _, examples = shown.partition("Example" if command else "Begin with")
        assert f"orch {command}".strip() in examples
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "40")
            narrow, _, same = orch(*command.split(), "--help").out.partition("Example" if command else "Begin with")
        assert [line for line in narrow.splitlines() if len(line) > 40] == []
        assert (narrow.split(), same.split()) == (options.split(), examples.split())

    assert failures_of(check, [*EVERY, *GROUPS, ""]) == []


@pytest.mark.parametrize("words", ["--help", "explain", "explain clock.skew", "inventory list -i inventory.yaml"])
def test_a_terminal_with_ascii_only(tmp_path: Path, words: str) -> None:
    (tmp_path / "inventory.yaml").write_text("nodes:\n  alpha: {address: 127.0.0.1, labels: {room: caf\u00e9}}\n")
    ran = subprocess.run(
        (sys.executable, "-c", "from orchestrator.cli import run; run()", *words.split()),
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.isascii()


def _read_to_end(terminal: IO[bytes]) -> bytes:
    """All that was written to the terminal: a single read may return a part. The end of a closed one is EIO."""
    shown = b""
    with suppress(OSError):
        while chunk := terminal.read(4096):
            shown += chunk
    return shown


def test_messages_on_a_narrow_terminal_break_no_word(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        ran = subprocess.run(
            (sys.executable, "-m", "orchestrator", "inventory", "list", "-i", "an inventory of several words.yaml"),
            cwd=tmp_path, stderr=theirs, stdout=subprocess.PIPE, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "40"},
        )  # fmt: skip
        os.close(theirs)
        shown = _read_to_end(terminal).decode().replace("\r", "").splitlines()
    assert (ran.returncode, ran.stdout) == (3, b"")
    assert shown[:2] == ["error: no an inventory of several", "  words.yaml (given by -i)"]
    assert shown[2].startswith("  → orch init ADDRESS...   # write one ")
    assert shown[2].endswith(" orch lab up")


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_on_a_terminal(environ: dict[str, str], coloured: bool) -> None:
    """Every command prints through these consoles."""
    code = (
        "import sys; from orchestrator.render import console; getattr(console, sys.argv[1])().print('x', style='red')"
    )
    saved = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    for stream in ("stdout", "stderr"):
        ours, theirs = os.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            subprocess.run(
                (sys.executable, "-c", code, stream), stdout=theirs, stderr=theirs, check=True,
                env={**saved, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environ},
            )  # fmt: skip
            os.close(theirs)
            shown = _read_to_end(terminal)
        assert b"x" in shown
        assert (b"\x1b[31m" in shown) == coloured
