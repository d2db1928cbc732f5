"""Whether torch.compile pays, and whether it can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer.engine.hardware import compiling
from trainer.engine.reporting.metrics import Throughput

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("step_s", "steps_left", "gain", "cost_s", "worth"),
    [
        (1.4, 530, 0.05, 36, False),  # GPT-2 on two cores: it takes some hundred steps more than that
        (1.4, 560, 0.05, 36, True),
        (5.6, 35, 0.23, 36, True),  # ResNet-18 there
        (5.6, 34, 0.23, 36, False),
        (0.1, 10, 0.5, 45, False),
        (0.1, 10_000, 0.5, 45, True),
    ],
)
def test_it_pays_from_some_step_on(step_s: float, steps_left: int, gain: float, cost_s: float, worth: bool) -> None:
    assert compiling.pays(step_s, steps_left, gain, cost_s) is worth
    assert compiling.decide(step_s, steps_left, gain, cost_s).compile is worth


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


def test_the_decision_in_words() -> None:
    why = compiling.decide(0.25, 100, 0.25, 36).why
    assert why == "not compiled: 100 steps of 250 ms would be 5.0 s shorter, and compiling takes 36 s"


def test_what_is_known_of_devices() -> None:
    assert compiling.cost_s(CPU) < compiling.cost_s(GPU)
    assert compiling.gain(CPU, 0.23) == 0.23
    assert compiling.gain(GPU, 0.23) == compiling.GPU_GAIN


def test_what_lacks(tmp_path: Path) -> None:
    assert "g++ is not there" in compiling.what_lacks(CPU, {}, lambda name: None, tmp_path)
    assert "clang++ is not there" in compiling.what_lacks(CPU, {"CXX": "clang++"}, lambda name: None, tmp_path)
    assert "Python.h is not there" in compiling.what_lacks(CPU, {}, lambda name: f"/bin/{name}", tmp_path)
    (tmp_path / "Python.h").touch()
    assert compiling.what_lacks(CPU, {}, lambda name: f"/bin/{name}", tmp_path) == ""


def test_in_place_keeps_the_names_and_the_figures() -> None:
    """In a process of its own, as torch's tracing stays in one. Traced, not translated: that takes ten seconds more."""
    if compiling.what_lacks(CPU):
        pytest.skip(compiling.what_lacks(CPU))
    ran = subprocess.run(
        (sys.executable, "-c", COMPILED), capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (ran.returncode, ran.stdout) == (0, "compiled\n"), ran.stderr


COMPILED = """
import pickle
import torch
from torch import nn
from torch._dynamo.utils import counters
from trainer.engine.hardware import compiling

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))  # torch's own class: see compile_in_place
names, x = list(model.state_dict()), torch.randn(9, 4)
expected = model(x)
assert compiling.compile_in_place(model, torch.device("cpu"), dynamic=True, backend="eager") == ""
assert list(model.state_dict()) == names
for rows in (9, 5, 3, 7, 8, 6):  # ragged batches
    torch.testing.assert_close(model(x[:rows]), expected[:rows])
pickle.dumps(model)  # as for worker processes
print("compiled" if 1 <= counters["stats"]["unique_graphs"] <= 2 else dict(counters["stats"]))
"""


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
    assert "compiling in the next step" in compiled.out
    assert [*(tmp_path / "cache").rglob("*.main.so")]  # its kernels


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


def test_checkpointed_blocks_count_a_batch_once_when_compiled() -> None:
    ran = subprocess.run(
        (sys.executable, "-c", CHECKPOINTED), capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (ran.returncode, ran.stdout) == (0, "same\n"), ran.stderr


CHECKPOINTED = """
import torch
from trainer.engine.hardware import compiling
from trainer.models import resnet

def trained(checkpointing, compiled):
    torch.manual_seed(0)
    model = resnet.ResNet(resnet.SHAPES["resnet-small"], 1, 3, checkpointing).train()
    if compiled:
        assert compiling.compile_in_place(model, torch.device("cpu"), backend="aot_eager") == ""
    for _ in range(2):
        model(torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return gradients, {name: buffer.float() for name, buffer in model.named_buffers()}

expected = trained(False, False)
for checkpointing, compiled in ((True, False), (True, True), (False, True)):
    torch.testing.assert_close(trained(checkpointing, compiled), expected, rtol=1e-4, atol=1e-5)
print("same")
"""


def test_where_it_cannot_be_the_model_stays_as_it_is() -> None:
    model = nn.Linear(2, 2)
    lacking = compiling.compile_in_place(model, torch.device("cuda", 0))
    if not lacking:
        pytest.skip("this machine has what a GPU needs")
    assert model(torch.ones(1, 2)).shape == (1, 2)
    assert model._compiled_call_impl is None
