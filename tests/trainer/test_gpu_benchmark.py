"""The proof on a card, rehearsed on a CPU: its contestants, their turns, and the lines of a run that is cut."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import gpu, waves
from benchmarks.gpu import Results
from benchmarks.gpu_parts import GOALS, PARTS, Goal, of, ratio, summary
from benchmarks.side_by_side import ROOT, Comparison, _parse
from benchmarks.stopwatch import Stopwatch
from benchmarks.waves import Contestant, Limits

FOLDERS = {"data": Path("data"), "pictures": Path("pictures")}
CONTESTANTS = [one for part in PARTS for one in part.contestants(FOLDERS, rehearsed=False)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    gpu.make_data(folder, tiny=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1600)
def test_every_contestant_whose_packages_are_here_has_a_figure(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # which takes most of the time, and has tests of its own
    parts = ("facts", "gpt2", "vision", "text")
    words = ["--rehearse", "--data", str(tiny), "--out", str(tmp_path), "--seconds", "1500", "--only", *parts]
    assert gpu.main(words) == 0
    reported = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert reported == [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    results = {(line["part"], line["name"]): line for line in reported if "name" in line and "turn" not in line}
    for part in PARTS:
        for name in part.names if part.name in parts else ():
            line = results[part.name, name]
            missing = str(line.get("problem", "")).startswith(("not installed", "needs cuda"))
            assert missing or line["units_per_s"] > 0, line
    assert results["gpt2", "ours-compiled"]["units_per_s"]
    assert results["gpt2", "nanogpt-like"]["units_per_s"]
    assert len([line for line in reported if line.get("turn") and line["name"] == "ours-compiled"]) == 2
    assert "met" not in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("one", CONTESTANTS, ids=lambda one: f"{one.part}-{one.name}")
def test_the_options_on_a_card_exist(one: Contestant) -> None:
    comparison: Comparison = import_module(one.argv[0]).COMPARISON
    given = _parse(comparison, list(one.argv[1:]))
    assert given.device == "cuda"
    assert given.measure == one.name.partition("@")[0]
    assert Stopwatch.of(given).last <= 300


def test_the_goals_read_what_the_parts_measure() -> None:
    found = {
        (one.part, one.name): {"units_per_s": 2.0, "peak_mib": 1.0, "MFU": 0.5, "drift": 1.0} for one in CONTESTANTS
    }
    found["tests", ""] = {"failed": 0, "passed": 9}
    rows = summary(found, rehearsed=False)
    assert len(rows) == len(GOALS) + 2 <= 60
    assert not any("not measured" in row for row in rows)


def test_a_goal_is_met_missed_or_not_measured() -> None:
    goal = Goal(text="speed", figure=ratio(of("gpt2", "ours"), of("gpt2", "peer")), at_least=1.05)
    found: dict[tuple[str, str], dict[str, Any]] = {("gpt2", "ours"): {"units_per_s": 2.0}}
    with pytest.raises(KeyError):
        goal.figure(found)
    found["gpt2", "peer"] = {"units_per_s": 1.0}
    assert goal.figure(found) == 2.0


def test_a_line_is_in_the_file_before_the_next_is_measured(tmp_path: Path) -> None:
    with Results(tmp_path) as results:
        results.report({"part": "gpt2", "name": "ours", "turn": 1, "step_ms": [2.0, 2.0]})
        results.report({"part": "gpt2", "name": "ours", "turn": 2, "step_ms": [2.5, 2.5]})
        results.report({"part": "gpt2", "name": "peer", "problem": "ended"})
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["ours", "ours", "peer"]
    assert results.found["gpt2", "ours"]["drift"] == pytest.approx(0.8)
    assert ("gpt2", "peer") not in results.found


def test_an_outcome_is_known_while_other_tests_run(tmp_path: Path) -> None:
    file = tmp_path / "outcomes"
    file.touch()
    code = f"import pathlib, time; pathlib.Path({str(file)!r}).write_text('{{}}\\n'); time.sleep(600)"
    with file.open() as lines, subprocess.Popen([sys.executable, "-c", code]) as process:
        outcomes = gpu._outcomes(process, lines, time.monotonic() + 60)
        assert next(outcomes) == {}
        assert process.poll() is None
        process.kill()
        assert list(outcomes) == []


# ── Waves ─────────────────────────────────────────────────────────────────────────────────────────

SAYS = "import json, os, sys, time; from benchmarks.stopwatch import Stopwatch, Turn; from pathlib import Path; "
WATCH = "w = Stopwatch(1, 2, windows=2, settle=1, turn=Turn.from_environ(os.environ)); "
STEPS = "[w.after(step) for step in range(1, w.last + 1)]; m = w.measured(1, 'units'); "
RESULT = "print(json.dumps({'units_per_s': m.units_per_s, 'unit': 'units', 'more': {}, 'machine': {}}), flush=True); "


def contestant(name: str, code: str, turns: int = 1) -> Contestant:
    return Contestant(part="part", name=name, argv=("timeit", "-n1", "-r1", "-s", SAYS + code, "pass"), turns=turns)


@pytest.fixture
def reported() -> list[dict[str, Any]]:
    return []


def test_contestants_wait_for_each_other_and_take_turns(tmp_path: Path, reported: list[dict[str, Any]]) -> None:
    log = tmp_path / "log"
    note = f"note = Path({str(log)!r}).open('a'); "
    code = f"{note}{WATCH}print('NAME', file=note, flush=True); {STEPS}{RESULT}time.sleep(60)"
    names = ("first", "second")
    wave = [contestant(name, code.replace("NAME", name), turns=2 if name == "first" else 1) for name in names]
    waves.run(wave, tmp_path, Limits.within(90, 2), lambda line: reported.append(dict(line)))
    turns = [(line["name"], line["turn"]) for line in reported if "turn" in line]
    assert turns == [("first", 1), ("second", 1), ("first", 2)]
    assert all(len(line["step_ms"]) == 2 for line in reported if "turn" in line)
    assert [line["name"] for line in reported if "units_per_s" in line] == ["second", "first"]
    assert sorted(log.read_text().split()) == ["first", "second"]


def test_who_fails_says_why_and_the_others_continue(tmp_path: Path, reported: list[dict[str, Any]]) -> None:
    fails = contestant("fails", "[print(n, file=sys.stderr) for n in range(9)]; 1 / 0")
    wave = [fails, contestant("works", f"{WATCH}{STEPS}{RESULT}os._exit(0)")]
    waves.run(wave, tmp_path, Limits.within(90, 2), lambda line: reported.append(dict(line)))
    failed = next(line for line in reported if line["name"] == "fails")
    assert failed["problem"] == "ended with exit code 1"
    assert len(failed["last_lines"]) == 6
    assert "ZeroDivisionError" in failed["last_lines"][-1]
    assert any(line["name"] == "works" and "units_per_s" in line for line in reported)


def test_who_is_not_warm_in_time_is_killed_with_its_children(tmp_path: Path, reported: list[dict[str, Any]]) -> None:
    """torchrun starts its ranks in sessions of their own."""
    file = tmp_path / "child"
    child = f"import os, pathlib, time; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    began = time.monotonic()

    limits = Limits(arrive=began + 20, end=began + 20)
    waves.run([contestant("hangs", code)], tmp_path, limits, lambda line: reported.append(dict(line)))
    assert reported[0]["problem"] == "not warm in time"
    number = int(file.read_text())
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"


# ── A run that is cut ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def running(tiny: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--data", str(tiny), "--out", str(tmp_path)]
    with subprocess.Popen(
        [*argv, "--only", "facts", "gpt2"], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_is_cut_leaves_the_lines_before(running: subprocess.Popen[str], tmp_path: Path) -> None:
    assert running.stdout
    line = next(line for line in running.stdout if '"facts"' in line)
    running.kill()
    lines = [json.loads(each) for each in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert json.loads(line) in lines
    assert any("torch" in each for each in lines)


def test_each_part_has_a_rehearsal_of_the_same_contestants() -> None:
    for part in PARTS:
        tiny, real = (part.contestants(FOLDERS, rehearsed=rehearsed) for rehearsed in (True, False))
        assert [one.name for one in tiny] == [one.name for one in real]
        assert "cuda" not in " ".join(word for one in tiny for word in one.argv)
