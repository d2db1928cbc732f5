"""`-v`, `-q`, `--debug`: calls with their times; a file for bug reports without secrets."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from tests import lan
from tests.unit.conftest import THREE, Orch, detached


@pytest.mark.parametrize("words", [("-v", "runs"), ("runs", "-v"), ("runs", "--verbose")])
def test_verbose_shows_every_call_with_its_time(orch: Orch, words: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    detached(orch, here)
    ran = orch(*words, on=here)
    assert ran.code == 0
    for name in THREE:
        assert f"{name} engine: containers orch.run" in ran.err
    assert ": ok (0.0" in ran.err
    assert "engine: containers" not in orch("runs", on=here).err


@pytest.mark.parametrize("words", [("-q", "runs"), ("runs", "--quiet")])
def test_quiet_leaves_errors_and_data(orch: Orch, words: tuple[str, ...]) -> None:
    assert (orch(*words, on=lan.lan(*THREE)).err, orch("runs", on=lan.lan(*THREE)).err[:12]) == ("", "no runs yet\n")
    assert orch("-q", "status", on=lan.lan(*THREE)).err.startswith("error: no run on any node")


def test_debug_writes_a_file_without_secrets_and_says_where(
    orch: Orch, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    words = ("launch", "--detach", "--env", "HF_TOKEN=hf_very_secret_value", "--env", "MY_PASSWORD=two words")
    ran = orch("--debug", *words, on=lan.lan(*THREE))
    assert ran.code == 0, ran.err
    (file,) = (state / "debug").iterdir()
    assert ran.err.endswith(f"debug: {file} (for a bug report; read it before you send it)\n")
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for part in ("Python 3.", "paramiko ", "command line: orch --debug launch", "10.0.0.12", "alpha engine: create "):
        assert part in text
    assert "hf_very_secret_value" not in text
    assert "two words" not in text
    assert logging.getLogger("orch").handlers == []


def test_debug_by_a_variable(orch: Orch, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_DEBUG", "1")
    assert orch("runs", "--debug", on=lan.lan(*THREE)).code == 0
    assert len(list((state / "debug").iterdir())) == 1
