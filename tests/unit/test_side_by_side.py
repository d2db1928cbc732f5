"""The benchmarks' harness: turns, medians, who could not take part, and the table that people read."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.report import Result, Round, Spread, Table, as_json, markdown, ratio
from benchmarks.side_by_side import Candidate, Comparison, compare, interleave, round_of, unlike_constraints
from benchmarks.stopwatch import Measured, Stopwatch

MODULE = "tests.unit.test_side_by_side"


def measured(speed: float, **more: object) -> Round:
    return Round(measured=Measured(units_per_s=speed, unit="tokens", **more))  # type: ignore[arg-type]


def candidate(name: str, **how: object) -> Candidate:
    return Candidate(name=name, measure=lambda _given: Measured(units_per_s=1, unit="tokens"), **how)  # type: ignore[arg-type]


def take_turns(candidates: list[Candidate], run: Callable[[Candidate], Round]) -> dict[str, list[Round]]:
    return interleave(candidates, 3, "cpu", run, say=lambda _line: None)


def test_contestants_take_turns() -> None:
    asked: list[str] = []

    def run(one: Candidate) -> Round:
        asked.append(one.name)
        return measured(1)

    rounds = take_turns([candidate("a"), candidate("b")], run)
    assert asked == ["a", "b"] * 3
    assert [len(each) for each in rounds.values()] == [3, 3]


def test_who_cannot_take_part_is_named_and_never_run() -> None:
    def run(one: Candidate) -> Round:
        assert one.name == "here"
        return measured(1)

    missing = candidate("missing", needs=("json", "no_such_package"))
    rounds = take_turns([missing, candidate("gpu", only_on="cuda"), candidate("here", only_on="cpu")], run)
    assert [round_.problem for round_ in rounds["missing"]] == ["not installed: no_such_package"]
    assert [round_.problem for round_ in rounds["gpu"]] == ["needs cuda"]
    assert len(rounds["here"]) == 3


def test_who_failed_once_keeps_what_it_had_and_is_not_asked_again() -> None:
    answers = [measured(1), Round(problem="failed (1): no memory")]
    rounds = take_turns([candidate("a")], lambda _one: answers.pop(0))
    assert [round_.problem for round_ in rounds["a"]] == ["", "failed (1): no memory"]


def test_a_failure_is_reported_by_its_last_lines() -> None:
    round_ = round_of(1, "", "Traceback\n  somewhere\n\nValueError: wrong shape\n")
    assert round_.problem == "failed (1): ValueError: wrong shape"
    assert round_.last_lines[-2:] == ("somewhere", "ValueError: wrong shape")
    assert round_of(0, "", "").problem == "failed (0): no word"
    assert round_of(-9, '{"units_per_s": 1}', "").measured is None


def test_medians_and_ratios_round_by_round() -> None:
    """A machine that is slower in one round is so for both: the ratio stays, where that of the medians would not."""
    ours = [measured(30), measured(10), measured(40)]
    theirs = [measured(10), measured(5), measured(20)]
    assert Spread.of([3, 1, None, 2]) == Spread(median=2, least=1, most=3, count=3)
    assert ratio(ours, theirs) == Spread(median=2, least=2, most=3, count=3)
    assert ratio(ours[:2], [theirs[0], Round(problem="failed")]) == Spread(median=3, least=3, most=3, count=1)
    assert ratio(ours, []) is None


def test_the_stopwatch_times_what_comes_after_the_warm_up() -> None:
    now = iter([100.0, 107.0, 107.0, 111.0])
    watch = Stopwatch(warmup=2, steps=4, clock=lambda: next(now))
    assert [watch.after(step) for step in range(1, 7)] == [False] * 5 + [True]
    result = watch.measured(50, "tokens", loss=2.5)
    assert (result.step_s, result.units_per_s, result.start_s, result.loss) == (1.0, 50.0, 7.0, 2.5)
    assert result.peak_mib is not None
    assert result.machine["cores"]


def test_a_contestant_that_stops_early_has_measured_nothing() -> None:
    watch = Stopwatch(warmup=1, steps=2)
    watch.after(1)
    watch.after(2)
    with pytest.raises(RuntimeError, match="ended before step 3"):
        watch.measured(50, "tokens")


def result() -> Result:
    return Result(
        title="Some training",
        command="python -m benchmarks.some",
        settings={"batch_size": 4, "where": Path("Data"), "quick": False},
        machine={"cpu": "one | two"},
        began=0.0,
        seconds=1.0,
        load=((0.1, 0.2, 0.3), (1.1, 1.2, 1.3)),
        tables=(
            Table(
                name="ladder",
                title="Ladder",
                names=("plain", "faster", "away", "broken"),
                baseline="plain",
                ladder=True,
            ),
        ),
        rounds={
            "plain": [measured(100, step_s=0.5, peak_mib=200, loss=2.0), measured(50, step_s=1.0, peak_mib=200)],
            "faster": [measured(300, peak_mib=100, more={"MFU": 0.5, "mode": "best"}), measured(200, peak_mib=100)],
            "away": [Round(problem="not installed: timm")],
            "broken": [Round(problem="failed (1): oh", last_lines=("in a|b", "oh"))],
        },
        notes={"faster": "as shipped"},
    )


def test_the_table_that_people_read() -> None:
    lines = markdown(result()).splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("|")}
    assert rows["plain"].startswith("| plain | 75 (50–100) tokens/s | 1.00x (1.00x–1.00x) |")
    assert rows["faster"].startswith("| faster | 250 (200–300) tokens/s | 3.50x (3.00x–4.00x) | 3.50x (3.00x–4.00x) |")
    assert "0.50x (0.50x–0.50x)" in rows["faster"]
    assert "| 0.5 | best |" in rows["faster"]
    assert "not installed: timm" in rows["away"]
    assert "failed (1): oh" in rows["broken"]
    assert len({row.count("|") for row in rows.values()}) == 1
    text = "\n".join(lines)
    assert "Load before 0.1 0.2 0.3, after 1.1 1.2 1.3" in text
    assert "batch_size 4, where Data." in text
    assert "- faster: as shipped" in text
    assert "- broken failed; its last lines: `in a|b ⏎ oh`" in text


def test_the_json_holds_every_round_and_a_summary() -> None:
    reported_again = json.loads(json.dumps(as_json(result())))
    assert reported_again["summary"]["ladder"]["rows"]["faster"]["ratio"]["median"] == 3.5
    assert reported_again["summary"]["ladder"]["rows"]["away"]["problems"] == ["not installed: timm"]
    assert [round_["measured"]["units_per_s"] for round_ in reported_again["rounds"]["plain"]] == [100, 50]
    assert reported_again["settings"]["where"] == "Data"


def _chatter(given: argparse.Namespace) -> Measured:
    sys.stdout.write("what packages print\n")
    return Measured(
        units_per_s=given.speed,
        unit="tokens",
        machine={"threads": given.threads, "waits": os.environ["OMP_WAIT_POLICY"]},
    )


def _fail(_given: argparse.Namespace) -> Measured:
    raise ValueError("wrong shape")


def _add_speed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--speed", type=float, default=10.0)


COMPARISON = Comparison(
    title="A comparison of nothing",
    module=MODULE,
    candidates=(
        Candidate(name="sound", measure=_chatter),
        Candidate(name="broken", measure=_fail),
        Candidate(name="aside", measure=_fail),
    ),
    tables=(
        Table(name="peers", title="Peers", names=("sound", "broken"), baseline="sound"),
        Table(name="other", title="Other", names=("aside",), baseline="aside"),
    ),
    arguments=_add_speed,
)


def test_each_contestant_has_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    argv = ["--speed", "25", "--repeats", "2", "--table", "peers", "--threads", "1", "--device", "cpu"]
    assert compare(COMPARISON, [*argv, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "| sound | 25 (25–25) tokens/s |" in captured.out
    assert "broken: failed (1): ValueError: wrong shape" in captured.err
    reported_again = json.loads(out.read_text())
    assert [len(reported_again["rounds"][name]) for name in ("sound", "broken")] == [2, 1]
    assert "aside" not in reported_again["rounds"]
    assert reported_again["machine"]["threads"] == 1
    assert reported_again["machine"]["waits"] == "PASSIVE"
    assert reported_again["settings"]["speed"] == 25


def test_a_comparison_of_which_nothing_ran_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(COMPARISON, ["--only", "broken", "--quick", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["rounds"]["broken"][0]["measured"] is None


if __name__ == "__main__":
    sys.exit(compare(COMPARISON, sys.argv[1:]))


def test_versions_other_than_the_projects_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text(
        "# exact versions\ntorch==2.13.0\nnumpy==9.9\ntransformers==5.0; python_version < '3'\n"
        "transformers==5.1; python_version >= '3'\n"
    )
    installed = {"torch": "2.13.0+cpu", "transformers": "5.1"}
    monkeypatch.setattr("benchmarks.side_by_side.version", lambda name: installed[name])
    assert list(unlike_constraints(file)) == []
    installed.update(torch="2.15.0+cu130", transformers="5.2")
    assert list(unlike_constraints(file)) == [
        "torch 2.15.0+cu130 is installed, the project's constraints have ==2.13.0",
        "transformers 5.2 is installed, the project's constraints have ==5.1",
    ]


def test_no_round_begins_that_would_not_end_in_time() -> None:
    now, messages = [0.0], list[str]()
    candidates = [Candidate(name=name, measure=lambda _given: Measured(units_per_s=1, unit="x")) for name in "ab"]

    def run(candidate: Candidate) -> Round:
        now[0] += 10
        return Round(measured=candidate.measure(argparse.Namespace()))

    rounds = interleave(candidates, 3, "cpu", run, messages.append, left_s=lambda: 45 - now[0])
    assert [len(each) for each in rounds.values()] == [2, 2]
    assert messages[-1] == "no time left for round 3 of 3"
    rounds = interleave(candidates, 3, "cpu", run, messages.append, left_s=lambda: 45 - now[0])
    assert [[one.problem for one in each] for each in rounds.values()] == [[""], ["no time left"]]
