"""The benchmark of a GPU, rehearsed on a CPU: what it runs, what it leaves, and how it judges."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import gpu
from benchmarks.gpu import GOALS, PARTS, Goal, Part, times, verdict
from benchmarks.side_by_side import Comparison, _parse

WORK = {part.name: part for part in PARTS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_kind_of_part_runs_and_leaves_its_files(tmp_path: Path) -> None:
    """One part of each module; the others differ in options, which are parsed below."""
    kinds = ("correctness", "memory", "vision", "text", "exchange", "muon")
    assert {part.argv[0] for part in PARTS} == {WORK[name].argv[0] for name in kinds}
    words = ["--out", str(tmp_path), "--rehearse", "--only", *kinds]
    assert gpu.main(words) == 0, [log.read_text()[-2000:] for log in tmp_path.glob("*.log")]
    for name in kinds:
        assert json.loads((tmp_path / f"{name}.json").read_text())
        assert "no figure here means anything" in (tmp_path / f"{name}.md").read_text()
    tests = json.loads((tmp_path / "correctness.json").read_text())
    assert tests["failed"] == 0
    assert tests["skipped"] + tests["passed"] > 20
    report = (tmp_path / "README.md").read_text()
    assert report.count("not measured") == len(GOALS)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("part", [part for part in PARTS if "--repeats" in part.argv], ids=lambda part: part.name)
def test_the_options_of_a_comparison_exist(part: Part) -> None:
    comparison: Comparison = import_module(part.argv[0]).COMPARISON
    words = [word.format(out="out.json", data="data", within="9") for word in part.argv[1:]]
    given = _parse(comparison, words)
    shown = {name for table in comparison.tables if table.name in given.table for name in table.names}
    assert given.repeats >= 3
    assert set(given.only or shown) <= shown


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("peers-16", gpu.BEST_AT_16),
        ("peers-64", ("ours-compiled",)),
        ("shipped", ("ours", "hf-trainer", "lightning")),
        ("memory", ("ours-frugal", "ours-compiled")),
        ("vision", ("ours", "ours-compiled", "naive", "timm")),
        ("text", ("ours", "hf-trainer")),
    ],
)
def test_the_goals_candidates_are_measured_by_their_parts(part: str, names: tuple[str, ...]) -> None:
    comparison: Comparison = import_module(WORK[part].argv[0]).COMPARISON
    words = [word.format(out="out.json", data="data", within="9") for word in WORK[part].argv[1:]]
    given = _parse(comparison, words)
    shown = {name for table in comparison.tables if table.name in given.table for name in table.names}
    assert set(names) <= set(given.only or shown)
    rounds = {name: [{"measured": {"units_per_s": 9.0, "peak_mib": 1.0, "more": {"MFU": 0.5}}}] for name in names}
    goals = [goal for goal in GOALS if goal.part == part]
    assert goals
    assert all(goal.figure({"rounds": rounds}) is not None for goal in goals)


def measured(*rates: float) -> list[dict[str, Any]]:
    return [{"measured": {"units_per_s": rate, "peak_mib": 100 / rate, "more": {}}} for rate in rates]


def test_ratios_are_medians_over_rounds_to_the_fastest_of_the_others() -> None:
    result = {"rounds": {"ours": measured(20, 30, 90), "slow": measured(1, 1, 1), "fast": measured(10, 10, 10)}}
    assert times("ours", "slow", "fast")(result) == 3.0
    assert times("ours", "slow", "absent")(result) == 30.0
    assert times("ours", "absent")(result) is None
    assert times("absent", "slow")(result) is None
    assert times("ours", "fast", figure="peak_mib")(result) == pytest.approx(1 / 3)


def test_goals_are_met_missed_or_not_measured(tmp_path: Path) -> None:
    goal = Goal(text="speed", part="peers", figure=times("ours", "peer"), at_least=1.15)
    assert verdict(goal, tmp_path, rehearsed=False) == ("", "not measured: this part has not run")
    file = tmp_path / "peers.json"
    for ours, expected in ((2.0, ("2", "met")), (1.0, ("1", "missed"))):
        file.write_text(json.dumps({"rounds": {"ours": measured(ours), "peer": measured(1.0)}}))
        assert verdict(goal, tmp_path, rehearsed=False) == expected
    file.write_text(json.dumps({"rounds": {"ours": measured(1.0), "peer": [{"measured": None}]}}))
    assert verdict(goal, tmp_path, rehearsed=False) == ("", "not measured: a candidate did not run")
    assert verdict(goal, tmp_path, rehearsed=True) == ("", "not measured: a rehearsal")


@pytest.mark.parametrize(("needed", "figure"), [([0.5, 0.6], 0.6), ([0.5, None], float("inf")), ([], None)])
def test_muon_needs_what_its_worst_seed_needs(needed: list[float | None], figure: float | None) -> None:
    (goal,) = (goal for goal in GOALS if goal.part == "muon")
    assert goal.figure({"muon_tokens_to_adamws_loss": dict(enumerate(needed))}) == figure


def once(name: str, code: str) -> Part:
    words = ("timeit", "-n1", "-r1", "-s", "import time, pathlib", code)
    return Part(name=name, title=name, argv=words, rehearsal=words)


def test_a_part_that_is_cut_off_leaves_no_rank_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts its ranks in sessions of their own."""
    child = "import os, pathlib, time; pathlib.Path('{out}.rank').write_text(str(os.getpid())); time.sleep(600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    kept = tmp_path / "rank"
    part = once("hanging", start.replace("{out}.rank", str(kept)))
    assert "not done after 5 s" in gpu.run_part(part, tmp_path, tmp_path, rehearsed=True, limit_s=5)
    assert not psutil.pid_exists(int(kept.read_text())) or psutil.Process(int(kept.read_text())).status() == "zombie"


def test_a_part_that_was_cut_off_is_repeated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = "pathlib.Path('{out}').write_text('1')"
    monkeypatch.setattr(gpu.gpt2, "prepare", lambda _given: None)
    monkeypatch.setattr(gpu, "LIMIT_S", 3)
    monkeypatch.setattr(gpu, "GOALS", ())
    monkeypatch.setattr(gpu, "PARTS", (once("quick", write), once("slow", f"{write}; time.sleep(60)")))
    assert gpu.main(["--out", str(tmp_path)]) == 1
    assert {file.name for file in tmp_path.glob("*.json")} == {"quick.json"}
    assert "not done after 3 s; see slow.log" in capfd.readouterr().err
    monkeypatch.setattr(gpu, "PARTS", (once("quick", "1 / 0"), once("slow", write)))
    assert gpu.main(["--out", str(tmp_path)]) == 0
    said = capfd.readouterr().err
    assert "1 of 2: quick: done already" in said
    assert {file.name for file in tmp_path.glob("*.json")} == {"quick.json", "slow.json"}
    monkeypatch.setattr(gpu, "PARTS", (once("failing", "1 / 0"),))
    assert gpu.main(["--out", str(tmp_path)]) == 1
    assert "failed with exit code 1; see failing.log" in capfd.readouterr().err
    assert "ZeroDivisionError" in (tmp_path / "failing.log").read_text()
    assert gpu.main(["--out", str(tmp_path), "--minutes", "0"]) == 1
    assert "no time left; the same command continues here" in capfd.readouterr().err
