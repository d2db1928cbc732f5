"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import build_app, main
from orchestrator.cli.consent import answering_by
from orchestrator.cli.launching.command_words import look, looking_by
from orchestrator.cli.launching.following import spawning_by
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.faults import crashes_folder
from orchestrator.fleet.planning import look_ahead
from tests import lan
from tests.json_output import json_data

THREE = lan.NAMES[:3]
INVENTORY = "nodes:\n" + "".join(f"  {name}: {{address: {lan.address_of(name)}}}\n" for name in THREE)


@dataclass(frozen=True)
class Ran:
    """A command line that has ended."""

    code: int
    out: str
    err: str
    asked: tuple[str, ...] = ()
    """Questions that a person at the terminal was asked."""


Orch = Callable[..., Ran]

LOOKED_AT: dict[tuple[object, ...], look_ahead.CheckedWords] = {}


def look_once(words: Sequence[str], **how: Any) -> look_ahead.CheckedWords:
    """Ask the trainer for the same words once: each question starts an interpreter, and hundreds of tests launch. What
    depends on files or on the terminal, and what is refused, is asked every time."""
    named = (word.rpartition("=")[2] for word in words)
    if how.get("data") or how.get("folder") or any(map(os.path.exists, named)):  # False for what can be no path
        return look(words, **how)
    variables = {**os.environ, **(how.get("environment") or {})}
    own = tuple(sorted(one for one in variables.items() if one[0].startswith("TRAINER_")))
    asked = (look_ahead.PACKAGES, *words, how["prog"], own)
    if asked not in LOOKED_AT:
        checked = look(words, **how)
        if checked.help:
            return checked
        LOOKED_AT[asked] = checked
    return LOOKED_AT[asked]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The controller's state: a folder of this test's own, not the user's."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    return folder / "orch"


@pytest.fixture
def supervisors() -> list[tuple[str, ...]]:
    """The command lines of the supervisors that were started in the background, which here stay words."""
    return []


@pytest.fixture
def orch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    supervisors: list[tuple[str, ...]],
) -> Orch:
    """`orch` in a folder with an inventory of three machines, reached as the lan given.

    `says`: what a person at the terminal answers every question, or each one; None: there is no terminal.
    """
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("inventory.yaml").write_text(INVENTORY)

    def run(*argv: str, on: lan.Lan | None = None, says: bool | Callable[[str], bool] | None = True) -> Ran:
        asked: list[str] = []

        def person(question: str, _default: bool) -> bool:
            asked.append(question)
            return says(question) if callable(says) else bool(says)

        with (
            answering_by(None if says is None else person),
            connecting_by((on or lan.Lan()).connect),
            looking_by(look_once),
            spawning_by(lambda argv, _log, _variables: supervisors.append(tuple(argv))),
        ):
            code = main(argv)
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        assert [file.read_text() for file in crashes_folder().glob("*")] == []
        return Ran(code, output.out, output.err, tuple(asked))

    return run


def detached(orch: Orch, here: lan.Lan, name: str = "first") -> str:
    """Launch a run that no command follows; return its id."""
    ran = orch("launch", "--detach", "--json", "--name", name, on=here)
    assert ran.code == 0
    return str(json_data(ran.out)["run_id"])


def options() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command there is, with its options."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from walk(inner, (*path, name))
        else:
            yield path, {option for one in command.params for option in one.opts}

    yield from walk(build_app(None), ())


@pytest.fixture
def all_options(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], set[str]]:
    monkeypatch.setenv("_ORCH_COMPLETE", "all commands are loaded")
    return dict(options())
