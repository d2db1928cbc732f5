"""The benchmark of torch.compile, rehearsed: each row is kept, and a second call measures none again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import compile as benchmark
from trainer.engine.hardware import compiling

REHEARSED = ("start", "auto", "overlap", "estimate", "forecast")
"""`gains` runs as `start` does, on every workload."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_tables_are_measured_once(data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if lacking := compiling.what_lacks(torch.device("cpu")):
        pytest.skip(lacking)
    (tmp_path / "tokens").symlink_to(data_dir)
    words = ["--out", str(tmp_path), "--rehearse", "--table", *REHEARSED]
    assert benchmark.main(words) == 0
    first = capfd.readouterr()
    assert "no figure here means anything" in first.out
    rows = json.loads((tmp_path / "rows.json").read_text())
    (started,) = rows["start"].values()
    assert all(step_s > 0 for flag in benchmark.FLAGS for step_s in started[flag]["step_s"])
    (decided,) = rows["auto"].values()
    assert decided["auto_s"] >= decided["uncompiled_s"]
    assert not decided["chosen"], "a minute is too short to pay"
    (estimated,) = rows["estimate"].values()
    assert 0 < estimated["fusable_s"] < estimated["whole_s"]
    overlap = rows["overlap"]["gpt2, compiled"]
    assert overlap["full"] == sorted(overlap["full"]), "block by block"
    assert 0 < overlap["overlap"] < rows["overlap"]["gpt2, eager"]["overlap"] < 1
    assert all(row in first.out for table in rows.values() for row in table)
    assert benchmark.main(words) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("auto_s", "verdict"), [(100.0, "right"), (104.0, "+4.0%, within 5 %"), (130.0, "+30.0%")])
def test_a_decision_is_judged_by_the_better_of_the_two(tmp_path: Path, auto_s: float, verdict: str) -> None:
    bench = benchmark.Bench(out=tmp_path, rehearsed=False)
    row = {"uncompiled_s": 100.0, "compiled_s": 120.0, "auto_s": auto_s, "steps": 9, "chosen": False, "said": []}
    assert f"| not compiled | {verdict} |" in benchmark.auto_table(bench, {"quiet": row})[2]


def test_busy_processes_end_with_the_measurement() -> None:
    import psutil

    before = set(psutil.Process().children())
    with benchmark.busy(2):
        others = set(psutil.Process().children()) - before
        assert len(others) == 2
    assert not any(other.is_running() for other in others)
