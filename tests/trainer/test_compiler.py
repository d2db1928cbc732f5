"""When a run compiles its model, and whether it keeps to it."""

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
from trainer.engine.compiler import PATIENCE_S, Compiler, CompileTimes, _Watch
from trainer.engine.hardware import compiling
from trainer.engine.hardware.compiling import Saved
from trainer.engine.hardware.pass_times import PassTimes
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
    told: list[str] = field(default_factory=list)
    slow: list[int] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """The gain at each time that the training was told of another speed of its steps."""
    model: nn.Module = field(default_factory=lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))

    looked: list[int] = field(default_factory=list)
    """An entry for each pass that was measured operator by operator."""

    all_gather: Callable[[float], list[float]] | None = None
    barrier: Callable[[], object] = lambda: None

    def compiler(
        self, compile: bool | str = "auto", *, fusable: float = 0.5, deterministic: bool = False, slowness: float = 2.0
    ) -> Compiler:
        """`fusable`: share of this rank's pass, as it is measured operator by operator."""
        workload = SimpleNamespace(model=self.model, identity={"width": 4})

        def timed(*_: object) -> SimpleNamespace:
            self.looked.append(1)
            return SimpleNamespace(stop=lambda: None, read=lambda: pass_of(fusable))

        run = SimpleNamespace(
            workload=workload,
            options=TrainOptions(compile=compile, deterministic=deterministic, run_dir=self.tmp_path),
            hardware=SimpleNamespace(device=CPU, precision="float32"),
            group=SimpleNamespace(
                all_gather_scalar=self.all_gather or (lambda own: [own, *self.others.values()]), barrier=self.barrier
            ),
            events=SimpleNamespace(say=self.told.append, warn=self.told.append),
            place=RankInfo(),
        )
        folder = {"TORCHINDUCTOR_CACHE_DIR": str(self.tmp_path / "cache")}
        return Compiler(run, folder, slowness=lambda: slowness, timed=timed)  # type: ignore[arg-type]

    @contextmanager
    def training(
        self, compile: bool | str = "auto", *, fusable: float = 0.5, deterministic: bool = False, slowness: float = 2.0
    ) -> Iterator[Compiler]:
        """A training that measures nothing before its first step."""
        compiler = self.compiler(compile, fusable=fusable, deterministic=deterministic, slowness=slowness)
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


def pass_of(fusable: float) -> PassTimes:
    """A pass of which this share can be fused, in steps that are nothing but passes."""
    return PassTimes(whole_s=1.0, wall_s=1e9, fusable_s=fusable)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(compiling, "what_lacks", lambda device: "")
    return Played(tmp_path)


COST_S = 2 * compiling.BLOCKS_S["cpu"]
"""On a machine that is twice as slow as the one of the figures."""


@pytest.mark.parametrize(
    ("left_s", "likely", "most", "pays"),
    [
        (101.0, 0.3, 0.5, True),
        (99.0, 0.3, 0.5, False),  # it would save 29.7 s, and that is not enough
        (1499.0, 0.01, 0.5, False),  # more than a fiftieth of the time left: no trial
        (1501.0, 0.01, 0.5, True),
        (1501.0, 0.0, 0.0199, False),  # it could not save what the trial costs
    ],
)
def test_what_will_probably_pay_is_compiled_and_what_may_where_that_costs_little(
    left_s: float, likely: float, most: float, pays: bool
) -> None:
    assert Saved(likely=likely, most=most).pays(left_s, cost_s=30.0) is pays


def test_a_gain_that_was_measured_leaves_nothing_to_try() -> None:
    known = Saved.measured(0.25)
    assert known.likely == known.most == pytest.approx(0.2)
    assert Saved.measured(-0.1) == Saved(likely=0.0, most=0.0)
    assert not Saved.measured(0.005).pays(1000.0, cost_s=6.0)


def test_less_is_certain_on_a_cpu() -> None:
    on_cpu, on_gpu = (Saved.estimated(0.5, torch.device(kind)) for kind in ("cpu", "cuda"))
    assert on_cpu.most == on_gpu.most == 0.5
    assert on_cpu.likely < on_gpu.likely < 0.5


@pytest.mark.parametrize(
    ("steps_left", "fusable", "pays"),
    [
        (int(COST_S / compiling.TRIAL) - 1, 0.5, False),
        (int(COST_S / compiling.TRIAL) + 1, 0.5, True),
        (int(COST_S / compiling.TRIAL) + 1, 0.01, False),
    ],
)
def test_auto_looks_at_a_step_and_compiles_where_that_may_pay(
    played: Played, steps_left: int, fusable: float, pays: bool
) -> None:
    with played.training(fusable=fusable) as compiler:
        played.steps(compiler, 4, 1.0, steps_left)
        assert not played.looked, "the first steps are not usual ones"
        played.steps(compiler, 1, 1.0, steps_left)
        assert played.looked
        assert not played.is_compiled
        played.steps(compiler, 1, 2.0, steps_left)  # watched, and so longer
        assert played.is_compiled is pays
        assert len(played.slow) == 1 + pays
        (told,) = played.told
        assert told.startswith("compiling in the next step, about 34 s" if pays else "not compiled: that takes about")


def test_a_run_that_is_too_short_for_any_result_is_not_looked_at(played: Played) -> None:
    enough = int(compiling.BLOCKS_S["cpu"] / compiling.TRIAL)
    with played.training(fusable=1.0) as compiler:
        played.steps(compiler, 20, 1.0, enough - 1)
    assert (played.looked, played.told, played.slow) == ([], [], [])
    with played.training(fusable=1.0) as compiler:
        played.steps(compiler, 20, 1.0, enough + 1)
    assert len(played.looked) == 1
    assert not played.is_compiled, "this machine is slow now"


def test_nothing_is_compiled_after_the_last_step(played: Played) -> None:
    """A step so long that compiling would pay within the next one, which is the last and is looked at."""
    with played.training(fusable=0.9) as compiler:
        played.steps(compiler, 5, COST_S / compiling.TRIAL + 1, left=1)
        assert played.looked
        played.steps(compiler, 1, COST_S / compiling.TRIAL + 1, left=0)
    assert not played.is_compiled


def test_batches_of_many_shapes_cost_two_compilations(played: Played) -> None:
    model = played.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    left = int(1.5 * COST_S / compiling.TRIAL)
    for rows, compiled in (([5, 5, 3, 5, 3], True), ([5, 4, 3, 2, 1], False)):
        with played.training() as compiler:
            for size in rows:
                model(torch.zeros(size, 4))
                played.steps(compiler, 1, 1.0, left)
            played.steps(compiler, 1, 1.0, left)
            assert played.is_compiled is compiled
        assert not model._forward_pre_hooks
        compiling.undo(model)


def test_ranks_decide_alike_and_never_at_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random machines whose ranks play together."""
    monkeypatch.setattr(compiling, "what_lacks", lambda device: "")
    chance, decided = Random(0), set()  # noqa: S311  # no secrets
    for case in range(200):
        ranks = [Member(chance) for _ in range(chance.choice((1, 2, 5)))]
        left = chance.choice((10, 100, 1000, 10_000))
        compiled = decide_together(ranks, left, tmp_path / str(case))
        assert len(set(compiled)) == 1
        left_s = left * max(one.step_s for one in ranks)
        cost_s = max(compiling.BLOCKS_S["cpu"] * one.slowness for one in ranks)
        if compiled[0]:
            assert min(one.fusable for one in ranks) * left_s > cost_s, "no more can be saved than can be fused"
            assert cost_s <= compiling.TRIAL * left_s, "on a CPU, where probably nothing is saved"
        decided.add(compiled[0])
    assert decided == {True, False}


class Member:
    """A rank of its own speed, share and slowness."""

    def __init__(self, chance: Random) -> None:
        self.step_s = 10 ** chance.uniform(-2, 1)
        self.fusable = chance.choice((0.0, 0.005, chance.uniform(0.0, 0.4)))
        self.slowness = chance.uniform(1.0, 6.0)


def decide_together(ranks: list[Member], steps_left: int, folder: Path) -> list[bool]:
    """Each rank in a thread of its own, with collectives that all of them have to call in the same order."""
    meeting, said = Barrier(len(ranks), timeout=10), [0.0] * len(ranks)

    def decide(number: int) -> bool:
        own = ranks[number]

        def all_gather_scalar(value: float) -> list[float]:
            said[number] = value
            meeting.wait()
            everyones = list(said)
            meeting.wait()
            return everyones

        played = Played(folder / str(number))
        played.all_gather, played.barrier = all_gather_scalar, meeting.wait
        with played.training(fusable=own.fusable, slowness=own.slowness) as compiler:
            for _ in range(6):
                known = own.step_s if compiler.measures else math.nan
                compiler.step_done(known, known, steps_left)
            return played.is_compiled

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(decide, range(len(ranks))))


def test_what_is_not_faster_is_undone_and_not_tried_again(played: Played) -> None:
    with played.training() as compiler:
        played.steps(compiler, 6, 1.0)
        played.steps(compiler, 1, 41.0)
        assert played.gains == [0.0]
        played.steps(compiler, 6, 1.0)
        assert not played.is_compiled
    assert played.gains == [0.0, 0.0]
    assert played.told[-1] == "compiled steps take 1.0 s, before 1.0 s: back to steps that are not compiled"
    with played.training() as again:
        played.steps(again, 30, 1.0)
        assert not played.is_compiled


def test_what_has_paid_is_compiled_at_once_when_the_run_starts_again(played: Played) -> None:
    with played.training() as compiler:
        played.steps(compiler, 6, 1.0)
        played.steps(compiler, 1, 41.0)
        played.steps(compiler, 6, 0.8)
        assert played.is_compiled
    assert played.gains == [0.0, 0.25]
    assert "compiled: the step took 41 s" in played.told
    (kept,) = json.loads((played.tmp_path / "cache/compile.json").read_text()).values()
    assert kept == {"seconds": 40.0, "warm": False, "gain": pytest.approx(0.25)}
    compiling.undo(played.model)
    with played.training():
        assert played.is_compiled
    compiling.undo(played.model)
    played.others = {"another rank, whose machine has never compiled this": 0.0}
    with played.training():
        assert not played.is_compiled


def test_the_pass_that_compiles_may_be_a_measurements(played: Played) -> None:
    """Then the steps are as usual ones from the first on, and what was compiled for the measurement trains."""
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
    assert played.told == ["compiling in the next pass", "compiled: its first pass took 0.0 s"]
    (kept,) = json.loads((played.tmp_path / "cache/compile.json").read_text()).values()
    assert (kept["warm"], kept["gain"]) == (False, None)
    with compiler.steps(compiler._run, lambda: played.slow.append(1), lambda: played.gains.append(0)):
        played.steps(compiler, 20, 1.0)
    assert (played.slow, played.gains) == ([], [])
    assert len(played.told) == 2


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


def test_the_slowest_rank_decides(played: Played) -> None:
    """Its steps are those of all; and where it gains nothing, nobody does."""
    played.others = {"no gain on this rank": 0.0}
    with played.training() as compiler:
        played.steps(compiler, 12, 1.0)
        assert not played.is_compiled


@pytest.mark.parametrize(("compile", "deterministic"), [(False, False), ("auto", True)])
def test_not_where_it_is_not_wanted(played: Played, compile: bool | str, deterministic: bool) -> None:
    with played.training(compile, deterministic=deterministic) as compiler:
        played.steps(compiler, 12, 10.0)
        assert not played.is_compiled
    assert played.told == []


def test_compiling_counts_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the hang detector, and for people."""
    times, over, said, parts = iter([0.0, 3.0, 6.0, 9.0, 12.0, 1900.0]), Event(), list[str](), list[str]()
    monkeypatch.setattr(heartbeat, "part", parts.append)
    monkeypatch.setattr("trainer.engine.compiler.TICK_S", 0.001)

    def clock() -> float:
        now = next(times)
        if now > PATIENCE_S:
            over.set()
        return now

    _Watch(said.append, clock)
    assert over.wait(10)
    assert parts == ["compiling"] * 4
    assert said == ["compiling for 12 s"]


# ── Whole trainings ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_a_compiled_training_is_the_same_and_is_compiled(
    forked, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiling.what_lacks(CPU):
        pytest.skip(compiling.what_lacks(CPU))
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
    ("paid", "flags", "compiled"),
    [
        ("none", ("--compile", "--sync", "fp32"), True),
        ("none", ("--compile", "--forecast"), True),
        ("01", ("--sync", "int8"), True),
        ("0", (), False),
    ],
    ids=["asked for", "forecast only", "has paid", "has paid on one machine"],
)
def test_ranks_measure_the_program_that_trains(
    forked, data_dir: Path, tmp_path: Path, paid: str, flags: tuple[str, ...], compiled: bool
) -> None:
    words = ("gpt2", "train", "--layers", "3", "--heads", "2", "--width", "32", "--seq-len", "16", "--max-steps", "3",
             "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--no-amp", "--num-workers", "auto",
             "--log-every", "1", "--eval-every", "0", "--checkpoint-every", "0", "--prompt", "")  # fmt: skip
    result = forked(2, paid, *words, *flags, module="tests.trainer.compiled_ranks").result()
    ranks = seen(result)
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["measured"] == {"compiled": compiled, "graphs": int(compiled)}, "one graph for all blocks"
        # Nothing is compiled again for the training: not for DDP, for the trial of workers, nor for few samples.
        assert rank.get("trained", rank["measured"]) == rank["measured"]
        assert ("trained" in rank) is ("--forecast" not in flags)
    assert result.out.count("compiled: its first pass took") == (1 if compiled else 0)
    assert "compiled: the step took" not in result.out


def test_a_compiler_that_fails_is_told_from_the_training(
    forked, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = compiling.what_lacks(CPU, {"CXX": "false"})
    if headers:
        pytest.skip(headers)
    monkeypatch.setenv("CXX", "false")
    failed = forked(1, "gpt2", "train", "--layers", "1", "--heads", "2", "--width", "32", "--seq-len", "16",
                      "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--compile", "--num-workers",
                      "0").result()  # fmt: skip
    assert failed.code == 1
    assert "torch.compile failed, not the training: --no-compile goes without it" in failed.err
