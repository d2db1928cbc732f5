"""Record of the cause of a run's end, for the next start of its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.agent.exit_record import ROOM, ExitRecord
from trainer.agent.rank_exit import RankExit

ENDING = RankExit(outcome="user", node="beta", rank=1, exit_code=1, reason="ValueError: no such label")


def test_what_was_written_is_read_by_the_same_attempt_alone(tmp_path: Path) -> None:
    last = ExitRecord(tmp_path, 1, "r1.0")
    assert last.read() is None
    last.reserve()
    assert last.read() is None
    last.write(ENDING)
    assert ExitRecord(tmp_path, 1, "r1.0").read() == ENDING
    assert ExitRecord(tmp_path, 1, "r1.1").read() is None
    assert ExitRecord(tmp_path, 0, "r1.0").read() is None
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("over-1.json", ROOM)]


@pytest.mark.parametrize("word", ["layer, ", "слой, ", "🙂"])
def test_a_reason_however_long_takes_no_more_room(tmp_path: Path, word: str) -> None:
    last = ExitRecord(tmp_path, 1, "r1.0")
    last.write(RankExit(outcome="user", node="beta", reason="missing keys: " + word * 5000))
    assert (tmp_path / "over-1.json").stat().st_size == ROOM
    found = last.read()
    assert found
    assert found.reason.startswith(f"missing keys: {word}{word}")


def test_room_that_a_kill_left_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ExitRecord(tmp_path, 1, "r1.0").reserve()
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("written again"))
    ExitRecord(tmp_path, 1, "r1.0").reserve()


def test_a_disk_that_takes_nothing_spoils_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("write_bytes", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("os.open", refuse)
    last = ExitRecord(tmp_path, 1, "r1.0")
    last.reserve()
    last.write(ENDING)
    last.release()
    assert capsys.readouterr().err.count("could not be written: [Errno 30] Read-only file system") == 2
