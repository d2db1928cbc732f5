"""The benchmark of many nodes, rehearsed: each path runs, rows are kept, and goals are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fan_out as benchmark

ALONE = {"watch"}
"""Paths with threads that end with their process alone."""


@pytest.mark.parametrize("path", [path for path in benchmark.PATHS if path not in ALONE])
def test_each_path_is_measured(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # the benchmark sets its own
    figures = benchmark.row(path, 5)
    assert set(figures) == {"wall_s", "cpu_s", "mib", "threads", "files", "sent_mib"}
    assert figures["cpu_s"] > 0
    assert (figures["sent_mib"] > 0) == (path == "launch"), "the plan, on each node"


def test_rows_are_measured_once_each_in_its_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path), "--rehearse", "--path", *ALONE]
    assert benchmark.main(words) == 0
    first = capfd.readouterr()
    assert "no figure here means anything" in first.out
    assert first.err.count("watch, ") == len(benchmark.REHEARSED)
    rows = json.loads((tmp_path / "rows.json").read_text())["watch"]
    assert rows["8"]["threads"] > rows["4"]["threads"] > 8
    assert benchmark.main(words) == 0
    assert capfd.readouterr().err == ""


def figures(cpu_s: float, wall_s: float = 1.0) -> benchmark.Row:
    return {"cpu_s": cpu_s, "wall_s": wall_s}


def test_growth_and_the_time_to_plan_are_judged() -> None:
    linear = {"50": figures(0.05), "200": figures(0.2), "1000": figures(1.1)}
    quadratic = {"50": figures(0.05), "200": figures(0.2), "1000": figures(4.9)}
    short = {"50": figures(0.001), "200": figures(0.004), "1000": figures(0.1)}
    assert list(benchmark.missed({"status": linear, "checks": short, "pairs": quadratic, "dry-run": linear})) == []
    assert benchmark.growth(quadratic) == pytest.approx(1.99, abs=0.01)
    (too_fast,) = benchmark.missed({"status": quadratic})
    assert too_fast.startswith("status grows with the number of nodes to the power 1.99")
    slow = {**linear, "1000": figures(1.1, wall_s=6.0)}
    assert list(benchmark.missed({"dry-run": slow})) == ["planning 1,000 nodes took 6.0 s (wall_s), more than 5"]
