"""Reporters: the user's own classes get the figures on rank 0, and none of them ends a training.

The guide's examples are executed.
"""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_TORCH
from trainer.engine.reporting import reporters
from trainer.engine.reporting.reporters import Reporters, TrainingBegun
from trainer.errors import OptionError
from trainer.own_module import imported, split

pytestmark = NEEDS_TORCH

GUIDE = Path(__file__).parents[2] / "docs" / "watching.md"
DIGITS = Path(__file__).parents[2] / "docs" / "custom.md"
FILE = """
import json, os, threading
class Fake:
    def __init__(self): self.calls = []
    def start(self, begun): self.add("start", begun.first_step, begun.final_step, begun.options["lr"])
    def figures(self, kind, step, values): self.add("figures", kind, step, sorted(values))
    def checkpoint(self, step, path): self.add("checkpoint", step, path.name)
    def end(self, state): self.add("end", state)
    def add(self, *call):
        with open("calls.jsonl", "a") as file:
            file.write(json.dumps([os.environ.get("RANK", "0"), *call]) + chr(10))
class Broken(Fake):
    def figures(self, kind, step, values):
        raise ValueError("the key is hunter2-hunter2")
class Leaves(Fake):
    def start(self, begun):
        raise SystemExit("no key")
"""


def trained(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *named: str, options: tuple[str, ...] = ()
) -> Any:
    """A real training with these reporters."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DIGITS.read_text("utf-8"), re.S)
    Path("digits_of_reporters.py").write_text(code, "utf-8")
    Path("own_reporters.py").write_text(FILE, "utf-8")
    return call(
        "custom", "train", "--module", "digits_of_reporters.py:build", "--run-dir", str(tmp_path / "run"),
        "--no-compile", "--no-amp", "--log-every", "1", "--num-workers", "0", "--max-steps", "4", "--batch-size", "50",
        "--eval-every", "2", "--reporter", ",".join(named), *options,
    )  # fmt: skip


def calls() -> list[Any]:
    return [json.loads(line) for line in Path("calls.jsonl").read_text().splitlines()]


def test_a_reporter_gets_everything_in_order(call, tmp_path: Path, monkeypatch) -> None:
    ran = trained(call, tmp_path, monkeypatch, "own_reporters.py:Fake")
    assert ran.code == 0, ran.err
    found = calls()
    assert found[0] == ["0", "start", 1, 4, 0.0006]
    assert [one[3] for one in found if one[1:3] == ["figures", "train"]] == [1, 2, 3, 4]
    assert [one[3] for one in found if one[1:3] == ["figures", "validation"]] == [2, 4]
    assert ["0", "checkpoint", 4, "step-00000004"] in found
    assert found[-1] == ["0", "end", "done"]
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 6
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_failing_reporter_is_named_and_ends_nothing(call, tmp_path: Path, monkeypatch) -> None:
    names = [f"own_reporters.py:{name}" for name in ("Broken", "Leaves", "Missing", "Fake")]
    ran = trained(call, tmp_path, monkeypatch, *names, "no_such_module:Reporter")
    assert ran.code == 0, ran.err
    assert "own_reporters.py:Broken failed in figures: ValueError at " in ran.err
    assert "hunter2" not in ran.out + ran.err
    assert "own_reporters.py:Leaves failed in start: SystemExit" in ran.err
    assert "own_reporters.py:Missing failed in its import: OptionError" in ran.err
    assert "no_such_module:Reporter failed in its import: OptionError" in ran.err
    assert calls()[-1][1:] == ["end", "done"]  # of the one that is well


def test_a_failed_training_ends_its_reporters(call, tmp_path: Path, monkeypatch) -> None:
    ran = trained(call, tmp_path, monkeypatch, "own_reporters.py:Fake", options=("--lr", "1e38"))
    assert ran.code == 1, ran.err
    assert calls()[-1][1:] == ["end", "failed"]


def test_a_slow_reporter_misses_calls_and_is_left_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow_reporters.py").write_text(
        "import threading\nclass Slow:\n    def start(self, begun): threading.Event().wait(600)\n"
    )
    monkeypatch.setattr(reporters, "PATIENCE_S", 0.2)
    messages: list[str] = []
    slow = Reporters(TrainingBegun(run_dir=tmp_path / "run", first_step=1), "slow_reporters.py:Slow", messages.append)
    for step in range(reporters.MOST_WAITING + 10):
        slow.figures("train", step, {"loss": 1.0})
    slow.end("done")
    assert any("has not ended after 0 s" in line for line in messages)
    assert any(re.search(r"was too slow: \d+ calls were left out", line) for line in messages)


def test_other_ranks_have_none(tmp_path: Path) -> None:
    none = Reporters(None, "no_such_module:Reporter")
    none.figures("train", 1, {"loss": 1.0})
    none.end("done")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", ["", "module", ":Class", "module:", "nowhere.py:Class"])
def test_a_name_that_is_none(named: str) -> None:
    with pytest.raises(OptionError, match="--reporter"):
        split(named, "--reporter")


class Recorder:
    """A module whose every attribute is a function that notes its calls."""

    def __init__(self, calls: list[tuple[str, Any, Any]], name: str = "") -> None:
        self._calls, self._name, self.summary = calls, name, {}

    def __getattr__(self, name: str) -> Any:
        return Recorder(self._calls, f"{self._name}.{name}".lstrip("."))

    def __call__(self, *words: Any, **options: Any) -> Any:
        self._calls.append((self._name, words, options))
        return self


@pytest.mark.parametrize(("library", "name"), [("wandb", "Wandb"), ("mlflow", "Mlflow")])
def test_the_guides_examples(library: str, name: str, tmp_path: Path, monkeypatch) -> None:
    """The page's own code, with a library that notes what it is asked."""
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
    code = next(one for one in examples if f"import {library}" in one)
    (tmp_path / f"guide_{library}.py").write_text(code, "utf-8")
    noted: list[tuple[str, Any, Any]] = []
    module = types.ModuleType(library)
    module.__getattr__ = Recorder(noted).__getattr__  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, library, module)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.chdir(tmp_path)
    messages: list[str] = []
    begun = TrainingBegun(run_id="r1", run_dir=tmp_path / "run", first_step=1, options={"lr": 0.1})
    taken = Reporters(begun, f"guide_{library}.py:{name}", messages.append)
    taken.figures("train", 1, {"loss": 2.0, "grad_norm": float("nan")})
    taken.checkpoint(1, tmp_path)
    taken.end("done")
    assert messages == []
    names = [one for one, _, _ in noted]
    assert names[-1] == {"wandb": "init.finish", "mlflow": "end_run"}[library]
    logged = next(words[0] for one, words, _ in noted if one.endswith(("log", "log_metrics")))
    assert logged["train/loss"] == 2.0
    assert imported(f"guide_{library}.py:{name}", "--reporter").__name__ == name
