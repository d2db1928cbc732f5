"""Decision of a run to compile its model, and to stay with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.conftest import Result
from trainer.agent import heartbeat
from trainer.config import RankInfo, TrainOptions
from trainer.engine.compiler import LONG, PATIENCE_S, Compiler, CompileTimes, _Watch
from trainer.engine.hardware import compiling
from trainer.engine.reporting.metrics import Throughput

CPU = torch.device("cpu")


def test_neither_a_slow_first_step_nor_a_pause_counts_as_the_time_of_a_step() -> None:
    times = iter([0.0, 30.0, 31.0, 32.0, 92.0, 93.0, 94.0, 95.0])
    throughput = Throughput(clock=lambda: next(times))
    for _ in range(2):  # 30 s, and 1 s
        throughput.count(8)
    with throughput.paused():  # for a minute
        pass
    for _ in range(3):
        throughput.count(8)
    assert throughput.step_s == 1.0


def test_a_step_that_compiles_is_no_part_of_the_remaining_time() -> None:
    now = [0.0]
    throughput = Throughput(clock=lambda: now[0])
    for number in range(20):
        if number == 10:
            throughput.expect_slow_step()
        now[0] += 100.0 if number == 10 else 1.0
        throughput.count(8)
    assert throughput.remaining_s(10) == pytest.approx(10.0)


# ── The decision ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Played:
    """A run of a model with repeated blocks, whose other ranks answer what `others` says."""

    tmp_path: Path
    others: dict[str, float] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    slow: list[int] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """Gain at each report of another speed of the training's steps."""
    model: nn.Module = field(default_factory=lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
    all_gather: Callable[[float], list[float]] | None = None

    def compiler(self, compile: bool | str = "auto", *, deterministic: bool = False, on_gpu: bool = True) -> Compiler:
        run = SimpleNamespace(
            workload=SimpleNamespace(model=self.model, identity={"width": 4}),
            options=TrainOptions(compile=compile, deterministic=deterministic, run_dir=self.tmp_path),
            hardware=SimpleNamespace(device=CPU, on_gpu=on_gpu, precision="float32"),
            group=SimpleNamespace(all_gather_scalar=self.all_gather or (lambda own: [own, *self.others.values()])),
            events=SimpleNamespace(say=self.messages.append, warn=self.messages.append),
            place=RankInfo(),
        )
        return Compiler(run, {"TORCHINDUCTOR_CACHE_DIR": str(self.tmp_path / "cache")})  # type: ignore[arg-type]

    @contextmanager
    def training(self, compile: bool | str = "auto", **how: bool) -> Iterator[Compiler]:
        """A training that measures nothing before its first step."""
        compiler = self.compiler(compile, **how)
        compiler.start()
        with compiler.steps(
            compiler._run, lambda: self.slow.append(1), lambda: self.gains.append(round(compiler.gain, 3))
        ):
            yield compiler

    @property
    def is_compiled(self) -> bool:
        return any(module._compiled_call_impl for module in self.model.modules())

    def steps(self, compiler: Compiler, count: int, seconds: float, left: int = 10_000) -> None:
        for _ in range(count):
            known = seconds if compiler.measures else math.nan
            compiler.step_done(known, known, left)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(compiling, "missing_requirement", lambda device: "")
    return Played(tmp_path)


ENOUGH = round(LONG * compiling.BLOCKS_S)
"""Seconds of the rest of a run that is long beside the time of compiling."""


@pytest.mark.parametrize(("steps_left", "compiled"), [(ENOUGH - 1, False), (ENOUGH, True)])
def test_on_a_gpu_auto_compiles_where_the_rest_of_the_run_is_long(
    played: Played, steps_left: int, compiled: bool
) -> None:
    with played.training() as compiler:
        played.steps(compiler, 4, 1.0, steps_left)
        assert not played.is_compiled, "the first steps are not usual ones"
        played.steps(compiler, 1, 1.0, steps_left)
        assert played.is_compiled is compiled
    assert len(played.slow) == compiled
    assert played.messages == ["compiling in the next step: 20 s of the 6.7 min that are left"][: int(compiled)]


def test_on_a_cpu_only_what_is_asked_for_is_compiled(played: Played) -> None:
    with played.training(on_gpu=False) as compiler:
        played.steps(compiler, 20, 100.0)
        assert not played.is_compiled
    assert (played.messages, played.slow) == ([], [])
    with played.training(compile=True, on_gpu=False):
        assert played.is_compiled


def test_ranks_of_unequal_machines_decide_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random machines whose ranks play together."""
    monkeypatch.setattr(compiling, "missing_requirement", lambda device: "")
    chance, decided = Random(0), set()  # noqa: S311  # no secrets
    for case in range(100):
        times = [10 ** chance.uniform(-2, 1) for _ in range(chance.choice((1, 2, 5)))]
        left = chance.choice((10, 100, 1000, 10_000))
        compiled = decide_together(times, left, tmp_path / str(case))
        assert set(compiled) == {left * max(times) >= ENOUGH}
        decided |= set(compiled)
    assert decided == {True, False}


def decide_together(step_s: list[float], steps_left: int, folder: Path) -> list[bool]:
    """Each rank in a thread of its own, with collectives that all of them have to call in the same order."""
    meeting, message = Barrier(len(step_s), timeout=10), [0.0] * len(step_s)

    def decide(number: int) -> bool:
        def all_gather_scalar(value: float) -> list[float]:
            message[number] = value
            meeting.wait()
            everyones = list(message)
            meeting.wait()
            return everyones

        played = Played(folder / str(number), all_gather=all_gather_scalar)
        with played.training() as compiler:
            for _ in range(6):
                known = step_s[number] if compiler.measures else math.nan
                compiler.step_done(known, known, steps_left)
            return played.is_compiled

    with ThreadPoolExecutor(len(step_s)) as threads:
        return list(threads.map(decide, range(len(step_s))))


def test_what_is_not_faster_is_undone_and_not_tried_again(played: Played) -> None:
    with played.training() as compiler:
        played.steps(compiler, 5, 1.0)
        played.steps(compiler, 1, 41.0)
        assert played.gains == [0.0]
        played.steps(compiler, 6, 1.0)
        assert not played.is_compiled
    assert played.gains == [0.0, 0.0]
    assert played.messages[-1] == "compiled steps take 1.0 s, before 1.0 s: back to steps that are not compiled"
    with played.training() as again:
        played.steps(again, 30, 1.0)
        assert not played.is_compiled


def test_what_has_paid_is_compiled_at_once_when_the_run_starts_again(played: Played) -> None:
    with played.training() as compiler:
        played.steps(compiler, 5, 1.0)
        played.steps(compiler, 1, 41.0)
        played.steps(compiler, 6, 0.8)
        assert played.is_compiled
    assert played.gains == [0.0, 0.25]
    assert "compiled: the step took 41 s" in played.messages
    (saved,) = json.loads((played.tmp_path / "cache/compile.json").read_text()).values()
    assert saved == {"seconds": 40.0, "warm": False, "gain": pytest.approx(0.25)}
    compiling.undo(played.model)
    with played.training():
        assert played.is_compiled
    compiling.undo(played.model)
    played.others = {"another rank, whose machine has never compiled this": 0.0}
    with played.training():
        assert not played.is_compiled


def test_the_pass_that_compiles_may_be_a_measurements(played: Played) -> None:
    """The steps are then as usual ones from the first on, and what was compiled for the measurement trains."""
    compiler = played.compiler(compile=True)
    with compiler.first_pass():
        assert not compiler._watch, "before it is known whether it compiles"
    compiler.start()
    assert played.is_compiled
    with pytest.raises(MemoryError), compiler.first_pass():
        raise MemoryError
    assert compiler._pending
    with compiler.first_pass():
        assert compiler._watch
    with compiler.first_pass():
        assert not compiler._watch
    assert played.messages == ["compiling in the next pass", "compiled: its first pass took 0.0 s"]
    (saved,) = json.loads((played.tmp_path / "cache/compile.json").read_text()).values()
    assert (saved["warm"], saved["gain"]) == (False, None)
    with compiler.steps(compiler._run, lambda: played.slow.append(1), lambda: played.gains.append(0)):
        played.steps(compiler, 20, 1.0)
    assert (played.slow, played.gains) == ([], [])
    assert len(played.messages) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"key": 3}', '{"KEY": {"seconds": "x"}}'])
def test_figures_that_cannot_be_read_are_none(played: Played, text: str) -> None:
    with played.training() as compiler:
        played.steps(compiler, 12, 1.0)
    file = played.tmp_path / "cache/compile.json"
    (key,) = json.loads(file.read_text())
    file.write_text(text.replace("KEY", key))
    assert CompileTimes(file.parent).get(key) is None
    compiling.undo(played.model)
    with played.training():
        assert not played.is_compiled


@pytest.mark.parametrize(("compile", "deterministic"), [(False, False), ("auto", True)])
def test_not_where_it_is_not_wanted(played: Played, compile: bool | str, deterministic: bool) -> None:
    with played.training(compile, deterministic=deterministic) as compiler:
        played.steps(compiler, 12, 10.0)
        assert not played.is_compiled
    assert played.messages == []


def test_compiling_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hang detector and people see it."""
    times, over, output, parts = iter([0.0, 3.0, 6.0, 9.0, 12.0, 1900.0]), Event(), list[str](), list[str]()
    monkeypatch.setattr(heartbeat, "part", parts.append)
    monkeypatch.setattr("trainer.engine.compiler.TICK_S", 0.001)

    def clock() -> float:
        now = next(times)
        if now > PATIENCE_S:
            over.set()
        return now

    _Watch(output.append, clock)
    assert over.wait(10)
    assert parts == ["compiling"] * 4
    assert output == ["compiling for 12 s"]


# ── Whole trainings ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_a_compiled_training_is_the_same_and_is_compiled(
    forked, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiling.missing_requirement(CPU):
        pytest.skip(compiling.missing_requirement(CPU))
    words = ("gpt2", "train", "--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16", "--max-steps", "4",
             "--data-dir", str(data_dir), "--no-amp", "--num-workers", "0", "--log-every", "1",
             "--eval-every", "0")  # fmt: skip
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    plain = forked(1, *words, "--run-dir", str(tmp_path / "plain"), "--no-compile").result()
    assert not [*(tmp_path / "cache").rglob("*.main.so")]
    compiled = forked(1, *words, "--run-dir", str(tmp_path / "compiled"), "--compile").result()
    assert (plain.code, compiled.code) == (0, 0), plain.err + compiled.err
    assert compiled.losses() == pytest.approx(plain.losses(), rel=1e-4)
    assert "compiling in the next pass" in compiled.out
    assert [*(tmp_path / "cache").rglob("*.main.so")]  # its kernels


def seen(result: Result) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return [json.loads(line.removeprefix("seen ")) for line in result.out.splitlines() if line.startswith("seen ")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "compiled"),
    [
        (("--compile", "--sync", "fp32"), True),
        (("--compile", "--forecast"), True),
        (("--sync", "int8"), False),
    ],
    ids=["asked for", "forecast only", "by itself"],
)
def test_ranks_measure_the_program_that_trains(
    forked, data_dir: Path, tmp_path: Path, flags: tuple[str, ...], compiled: bool
) -> None:
    words = ("gpt2", "train", "--layers", "3", "--heads", "2", "--width", "32", "--seq-len", "16", "--max-steps", "3",
             "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--no-amp", "--num-workers", "auto",
             "--log-every", "1", "--eval-every", "0", "--checkpoint-every", "0", "--prompt", "")  # fmt: skip
    result = forked(2, *words, *flags, module="tests.trainer.compiled_ranks").result()
    ranks = seen(result)
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["measured"] == {"compiled": compiled, "graphs": int(compiled)}, "one graph for all blocks"
        # Nothing is compiled again for the training: not for DDP, for the trial of workers, nor for few samples.
        assert rank.get("trained", rank["measured"]) == rank["measured"]
        assert ("trained" in rank) is ("--forecast" not in flags)
    assert result.out.count("compiled: its first pass took") == (1 if compiled else 0)
    assert "compiled: the step took" not in result.out


def test_a_compiler_that_fails_is_distinguished_from_the_training(
    forked, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = compiling.missing_requirement(CPU, {"CXX": "false"})
    if headers:
        pytest.skip(headers)
    monkeypatch.setenv("CXX", "false")
    failed = forked(1, "gpt2", "train", "--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16",
                      "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--compile", "--num-workers",
                      "0").result()  # fmt: skip
    assert failed.code == 1
    assert "torch.compile failed, not the training: --no-compile goes without it" in failed.err
