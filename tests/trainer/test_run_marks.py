"""Marks in a run's folder that keep an old container from training."""

from __future__ import annotations

from pathlib import Path

from trainer.agent.run_marks import LONGEST, why_not_to_begin


def test_a_later_attempt_is_one_by_its_number(tmp_path: Path) -> None:
    assert why_not_to_begin(tmp_path, 2) == ""
    for name in ("0", "1", "2", "02", "x", "9" * 40, "3.lost-ab12", "-7", "٣"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    (tmp_path / "attempts/7").write_text("a file is no claim")
    assert why_not_to_begin(tmp_path, 2) == ""
    (tmp_path / "attempts/10").mkdir()
    assert why_not_to_begin(tmp_path, 2) == "attempt 10 of the run has begun, and this container is of attempt 2"
    assert why_not_to_begin(tmp_path, 10) == ""


def test_the_text_of_a_stop_is_bounded_and_readable(tmp_path: Path) -> None:
    (tmp_path / "stopped").write_bytes(b"\x1b[31mred\n" + b"x" * 10)
    why = why_not_to_begin(tmp_path, 0)
    assert why.startswith("the run was stopped while this node was away (")
    assert "\x1b" not in why
    (tmp_path / "stopped").write_bytes(b"\xff" * 100_000)
    assert len(why_not_to_begin(tmp_path, 0)) < LONGEST * 8
    (tmp_path / "stopped").unlink()
    (tmp_path / "stopped").mkdir()
    assert why_not_to_begin(tmp_path, 0).startswith("the run was stopped")
