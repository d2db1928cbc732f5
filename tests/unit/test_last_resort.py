"""Last resort for errors: an exception that no code expected, a terminal or a disk that takes no more."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import cli
from orchestrator.cli import main
from orchestrator.fleet import faults
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord
from tests import lan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line that meets a bug."""

    def build(_wanted: str | None, *, alone: bool) -> None:
        raise KeyError("no such\nthing \x1b[2J")

    monkeypatch.setattr(cli, "build_app", build)


@pytest.mark.usefixtures("broken")
def test_a_bug_is_one_line_and_a_file_with_the_traceback(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    output = capsys.readouterr()
    (file,) = (state / "crashes").iterdir()
    assert output.out == ""
    assert output.err == f"error: KeyError: 'no such\\nthing \\x1b[2J': this is a bug in orch; report it with {file}\n"
    assert "Traceback (most recent call last)" in file.read_text()
    assert 'raise KeyError("no such' in file.read_text()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.usefixtures("broken")
def test_such_files_do_not_pile_up(state: Path) -> None:
    for _ in range(faults.MAX_FILES + 3):
        main(["status"])
    saved = sorted(file.name[-8:-4] for file in (state / "crashes").iterdir())
    assert len(saved) == faults.MAX_FILES
    assert int(saved[-1]) - int(saved[0]) == faults.MAX_FILES - 1


@pytest.mark.usefixtures("broken")
def test_where_the_state_cannot_be_written_the_file_is_elsewhere(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state.parent.write_text("a file where the folder should be")
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "aside"))
    assert main(["status"]) == 1
    (file,) = (tmp_path / "aside").iterdir()
    assert f"report it with {file}" in capsys.readouterr().err

    monkeypatch.setattr(tempfile, "tempdir", str(state.parent))
    assert main(["status"]) == 1
    assert "its traceback could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict", "utf-8:strict"])
@pytest.mark.parametrize("words", [("why", "r-1"), ("logs", "r-1"), ("logs", "--json", "r-1")])
def test_a_terminal_without_a_character_gets_it_escaped(
    tmp_path: Path, state: Path, encoding: str, words: tuple[str, ...]
) -> None:
    """A file name that is not UTF-8 is a lone surrogate in an event; the words of orch have letters beyond ASCII."""
    record = RunRecord("r-1")
    record.save_plan(
        lan.plan(("alpha",), RunIdentity(run_id="r-1", user="ana", started_at="2026-01-02T15:04:05+00:00"))
    )
    name = "Data/caf\udce9/niño.txt"
    data = '@orch {"event": "failed", "error": "FileNotFoundError", "message": ' + json.dumps(name) + "}"
    record.folder.mkdir(parents=True, exist_ok=True)
    with record.open_log("alpha") as log:
        for text in (data, f"cannot open {name}"):
            line = RunLine(time=lan.moment(9), node="alpha", node_rank=0, rank=0, text=text)
            log.add(line)
    record.save_outcome("failed", "exit code 1")
    (tmp_path / "inventory.yaml").write_text("nodes:\n  alpha: {address: 127.0.0.1, port: 9}\n")
    ran = subprocess.run(
        (sys.executable, "-c", "from orchestrator.cli import run; run()", *words),
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(state.parent)},
    )  # fmt: skip
    assert (ran.returncode, b"Traceback" in ran.stderr, list(state.glob("crashes/*"))) == (0, False, []), ran.stderr
    assert b"caf\\udce9" in ran.stdout
