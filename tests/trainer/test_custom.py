"""A user's own module: the guide's example, exactness over ranks, and every way to get it wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import trainer
from tests.trainer.conftest import AS_ONE
from trainer.data.batch import BatchRequest
from trainer.errors import ConfigurationError
from trainer.workloads.custom import Custom, Task, find

GUIDE = Path(__file__).parents[2] / "docs" / "custom.md"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The guide's module, as a reader would copy it."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
    (tmp_path / "digits.py").write_text(code, "utf-8")
    return tmp_path / "digits.py"


def words(module: Path, run_dir: Path, *options: str) -> list[str]:
    return [
        "custom", "train", "--module", f"{module}:build", "--run-dir", str(run_dir), "--no-amp", "--no-compile",
        "--log-every", "1", "--num-workers", "0", "--lr", "0.01", *options,
    ]  # fmt: skip


def test_the_guides_example_learns_and_is_judged_again(call, digits: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    trained = call(*words(digits, tmp_path / "run", "--epochs", "8", "--batch-size", "50", "--set", "width=48"))
    assert trained.code == 0, trained.err
    last = trained.events("evaluation")[-1]
    assert last["accuracy"] > 0.9
    judged = call("custom", "evaluate", "--module", f"{digits}:build", "--set", "width=48", "--checkpoint",
                  str(tmp_path / "run"))  # fmt: skip
    assert json.loads(judged.out)["accuracy"] == pytest.approx(last["accuracy"], abs=1e-6)
    assert json.loads(judged.out)["loss"] == pytest.approx(last["loss"], abs=1e-6)


def test_a_checkpoint_of_other_settings_is_refused(call, digits: Path, tmp_path: Path) -> None:
    short = ("--max-steps", "2", "--eval-every", "0")
    assert call(*words(digits, tmp_path / "run", *short)).code == 0
    other = call(*words(digits, tmp_path / "run", *short, "--set", "width=16"))
    assert other.code == 3
    assert "settings" in other.err


def test_three_ranks_with_unequal_shares_train_as_one(call, forked, digits: Path, tmp_path: Path, monkeypatch) -> None:
    options = ("--global-batch-size", "10", "--batch-size", "4", "--max-steps", "12", "--eval-every", "6")
    three = forked(3, *words(digits, tmp_path / "three", *options, *AS_ONE)).result()
    assert three.code == 0, three.err
    monkeypatch.setenv("ORCH_EVENTS", "1")
    one = call(*words(digits, tmp_path / "one", *options))
    assert three.losses() == pytest.approx(one.losses(), rel=1e-5)
    for ours, alone in zip(three.events("evaluation"), one.events("evaluation"), strict=True):
        assert ours["accuracy"] == pytest.approx(alone["accuracy"])


def custom(loss) -> Custom:
    points = torch.arange(12.0).reshape(6, 2)
    data = TensorDataset(points, points.sum(dim=1))
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    return Custom(Task(model=model, train=data, loss=loss), "m:build", {})


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_for_each_sample_and_their_mean_are_the_same(reduction: str, portion) -> None:
    torch.manual_seed(0)
    workload = custom(nn.MSELoss(reduction=reduction))
    sums = workload.loss_sums(workload.model, workload.batch(portion(5)))
    inputs, targets = workload.batch(portion(5))
    torch.testing.assert_close(sums, (workload.model(inputs) - targets).square().sum().reshape(1))


def test_a_loss_of_another_shape_is_reported(portion) -> None:
    workload = custom(lambda outputs, targets: outputs[:, None] - targets)
    with pytest.raises(ConfigurationError, match=r"shape \(4, 4\): expected \(4,\)"):
        workload.loss_sums(workload.model, workload.batch(portion(4)))


@pytest.fixture
def portion():
    import numpy as np

    return lambda count: BatchRequest(split="train", indices=np.arange(count), positions=np.arange(count))


@pytest.mark.parametrize(
    ("content", "named", "options", "code", "message"),
    [
        ("", "", (), 2, "expected --module my_pkg:build"),
        ("", "{file}", (), 2, "expected --module my_pkg:build"),
        ("", "{folder}/other.py:build", (), 2, "there is no "),
        ("", "no_such_package:build", (), 2, "no module no_such_package"),
        ("", "{file}:build", (), 2, "has no function build"),
        ("build = 3", "{file}:build", (), 2, "has no function build"),
        ("import nothing_like_this", "{file}:build", (), 3, "No module named 'nothing_like_this'"),
        ("x = 1\n1 / 0", "{file}:build", (), 3, "ZeroDivisionError: division by zero ({file}:2)"),
        ("def build(width): ...", "{file}:build", (), 2, "missing a required argument: 'width'"),
        ("def build(): ...", "{file}:build", ("--set", "wide=3"), 2, "unexpected keyword argument 'wide'"),
        ("def build(): ...", "{file}:build", ("--set", "wide"), 2, "--set wide: expected NAME=VALUE"),
        ("def build(): ...", "{file}:build", (), 3, "returned a NoneType: expected a Task or a Workload"),
    ],
)
def test_what_is_wrong_with_a_module_is_reported(
    content: str, named: str, options: tuple[str, ...], code: int, message: str, call, tmp_path: Path
) -> None:
    file = tmp_path / f"wrong_{abs(hash((content, named, options)))}.py"  # Python imports a name once
    file.write_text(content, "utf-8")
    place = {"file": str(file), "folder": str(tmp_path)}
    failed = call("custom", "--module", named.format(**place), "--run-dir", str(tmp_path), *options)
    assert failed.code == code
    assert message.format(**place) in failed.err
    assert "Traceback" not in failed.err


def test_a_module_of_the_working_folder_and_a_package_are_found(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_own_pkg").mkdir()
    (tmp_path / "my_own_pkg" / "__init__.py").write_text("", "utf-8")
    (tmp_path / "my_own_pkg" / "tasks.py").write_text("def build(): return 7", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert find("my_own_pkg.tasks:build")() == 7


def test_a_file_called_as_a_module_of_ours_is_found(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "trainer.py").write_text("def build(): return 7", "utf-8")
    monkeypatch.chdir(tmp_path)
    root = str(Path(trainer.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [root, *sys.path])
    assert find("trainer.py:build")() == 7
    assert "trainer.workloads.custom" in sys.modules
    assert sys.path.index(root) < sys.path.index(str(tmp_path))  # spawned worker processes import ours


def test_a_workload_of_ones_own_is_taken_as_it_is(call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    file = tmp_path / "own_workload.py"
    file.write_text(
        "import torch\n"
        "from trainer.engine.workload import Workload\n"
        "class Mean(Workload):\n"
        "    name, unit, train_samples, identity = 'mean', 'numbers', 40, {'workload': 'mean'}\n"
        "    def __init__(self):\n"
        "        self.model = torch.nn.Linear(1, 1)\n"
        "    def batch(self, portion):\n"
        "        return (torch.from_numpy(portion.indices).float()[:, None] / 40,)\n"
        "    def loss_sums(self, model, batch):\n"
        "        return (model(batch[0]) - 3).square().sum()[None]\n"
        "def build(data_dir):\n"
        "    assert str(data_dir) == 'Elsewhere'\n"
        "    return Mean()\n",
        "utf-8",
    )
    run = call(*words(file, tmp_path / "run", "--data-dir", "Elsewhere", "--max-steps", "60", "--lr", "0.1"))
    assert run.code == 0, run.err
    assert run.events("done")[0]["loss"] < 0.1 * run.losses()[1]
