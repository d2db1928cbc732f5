"""`--profile`: the trace, the page, and the advice on it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer.engine.reporting import profile
from trainer.engine.reporting.profile import SKIPPED, StepProfiler
from trainer.engine.reporting.profile_page import (
    Operator,
    Page,
    advice,
    busy_share,
    device_intervals,
    read_trace,
    render,
)

CPU = torch.device("cpu")
PAGE = Page(
    device="CPU",
    steps=4,
    step_ms=100.0,
    parts={"data": 1.0, "forward": 30.0, "backward": 60.0, "optimizer": 4.0},
    operators=[Operator(name="aten::addmm", ms=70.0, calls=12), Operator(name="aten::add_", ms=30.0, calls=9)],
    memory_mib=512.0,
    busy=None,
    trace="trace.json",
)


def train(around: StepProfiler, steps: int) -> list[Path | None]:
    model, x = nn.Linear(64, 64), torch.randn(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    summaries = []
    for _ in range(steps):
        with around.part("forward"):
            loss = model(x).square().mean()
        with around.part("backward"):
            loss.backward()
        with around.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        summaries.append(around.step())
    return summaries


def test_a_trace_and_a_page(tmp_path: Path) -> None:
    with StepProfiler(tmp_path / "profile", 3, CPU, True) as around:
        summaries = train(around, SKIPPED + 5)
    assert [number for number, path in enumerate(summaries, start=1) if path] == [SKIPPED + 3]
    page = (tmp_path / "profile" / "summary.md").read_text()
    assert "3 steps on CPU" in page
    assert "| backward |" in page
    assert "`aten::addmm`" in page
    assert "forward` |" not in page  # parts are not among the operators
    assert around.outcome == f"profile: {tmp_path}/profile/summary.md"
    names = [event.get("name") for event in read_trace(tmp_path / "profile" / "trace.json")["traceEvents"]]
    assert names.count("backward") == 3
    assert "aten::addmm" in names


def test_the_parts_make_up_a_step(tmp_path: Path) -> None:
    with StepProfiler(tmp_path, 4, CPU, True) as around:
        train(around, SKIPPED + 4)
    rows = [line.split("|") for line in (tmp_path / "summary.md").read_text().splitlines() if line.startswith("| ")]
    parts = {row[1].strip(): float(row[3].strip().rstrip("%")) for row in rows if len(row) == 5 and "%" in row[3]}
    assert set(parts) == {"forward", "backward", "optimizer", "between them"}
    assert sum(parts.values()) == pytest.approx(100, abs=0.5)


def test_a_run_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    with StepProfiler(tmp_path, 50, CPU, True) as around:
        train(around, SKIPPED + 2)
    assert "2 steps on CPU" in (tmp_path / "summary.md").read_text()


def test_a_run_that_ends_before_it_begins(tmp_path: Path) -> None:
    for steps in (1, SKIPPED):
        with StepProfiler(tmp_path / "none", 3, CPU, True) as around:
            train(around, steps)
        assert "nothing was recorded" in around.outcome
    assert not (tmp_path / "none").exists()


def test_unasked_it_does_nothing(tmp_path: Path) -> None:
    with StepProfiler(tmp_path / "none", 3, CPU, False) as around:
        assert train(around, SKIPPED + 4) == [None] * (SKIPPED + 4)
    assert not (tmp_path / "none").exists()


def test_a_failing_step_fails_as_itself(tmp_path: Path) -> None:
    around = StepProfiler(tmp_path / "none", 3, CPU, True)

    def fail() -> None:
        with around:
            train(around, SKIPPED + 1)
            with around.part("forward"):
                raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        fail()
    train(around, 1)
    assert not (tmp_path / "none").exists()


def test_a_large_trace_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "LARGE_BYTES", 100)
    (tmp_path / "trace.json").write_text("of a run before")
    with StepProfiler(tmp_path, 1, CPU, True) as around:
        train(around, SKIPPED + 1)
    assert not (tmp_path / "trace.json").exists()
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == read_trace(
        tmp_path / "trace.json.gz"
    )
    assert "`trace.json.gz`" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("parts", "busy", "message"),
    [
        ({"data": 40.0, "forward": 30.0}, None, "40% of a step is waiting for data: try more --num-workers"),
        ({"optimizer": 30.0, "forward": 50.0}, None, "The optimizer takes 30% of a step: a larger --batch-size"),
        ({"reduce": 50.0, "forward": 50.0}, None, "50% of a step is spent among the ranks: try a larger --grad-accum"),
        ({"forward": 30.0, "backward": 65.0}, 0.4, "The GPU is idle for 60% of the time although data is there"),
        ({"forward": 30.0, "backward": 65.0}, 0.97, "Nothing stands out: most of a step is backward (65%)"),
        ({"evaluation": 90.0}, None, "Most of a step is evaluation (90%)"),
        ({}, None, "No part"),
    ],
)
def test_advice_follows_from_the_figures(parts: dict[str, float], busy: float | None, message: str) -> None:
    assert advice(replace(PAGE, parts=parts, busy=busy))[0].startswith(message)


def test_the_page() -> None:
    page = render(PAGE)
    assert "waiting for data: 1% of the time" in page
    assert "| between them | 5.00 | 5.0% |" in page
    assert "| `aten::addmm` | 70.00 | 70.0% | 12 |" in page
    assert "idle" not in page
    on_gpu = render(replace(PAGE, busy=0.9, operators=[Operator(name="void k<a|b>" + "x" * 99, ms=1.0, calls=1)]))
    assert "the GPU was idle for 10% of the time" in on_gpu
    assert "`void k<a\\|b>xxx" in on_gpu


def test_how_busy_a_gpu_was() -> None:
    trace = {
        "traceEvents": [
            {"cat": "kernel", "ts": 0.0, "dur": 10.0},
            {"cat": "gpu_memcpy", "ts": 5.0, "dur": 10.0},  # on another stream
            {"cat": "kernel", "ts": 40.0, "dur": 5.0},
            {"cat": "cpu_op", "ts": 0.0, "dur": 100.0},
            {"cat": "gpu_user_annotation", "ts": 0.0, "dur": 100.0},
            {"ph": "M", "name": "process_name"},
        ]
    }
    assert busy_share(device_intervals(trace), 100.0) == pytest.approx(0.2)
    assert busy_share([], 100.0) == 0
