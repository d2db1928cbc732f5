"""Steps that are replayed as CUDA graphs have the losses of steps that are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.conftest import Call, call, data_dir, picture_folder  # noqa: F401  # fixtures
from tests.trainer.test_no_waiting import RUNS, folders  # noqa: F401  # a fixture

STEPS = ("--max-steps", "12", "--eval-every", "6", "--checkpoint-every", "0", "--log-every", "1", "--num-workers", "0")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["gpt2-chunks", "text", "vision"])
def test_losses_are_those_without(
    name: str,
    call: Call,  # noqa: F811  # the fixture
    folders: Callable[[str], list[str]],  # noqa: F811  # the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCH_EVENTS", "1")
    workload, *options = RUNS[name]
    if workload == "vision":  # batch norm over few values: at the usual rate a last bit is 4 % of the loss in step 4
        options += ["--lr", "1e-5"]
    if workload == "text":  # dropout draws a number for each position, and graphs have positions up to multiples of 16
        options += ["--no-bucketing", "--max-length", "32"]
    found = []
    for how in ((), ("--cuda-graphs",)):
        words = [*folders(workload), "--run-dir", str(tmp_path / "run".join(how)), *STEPS, *options]
        ran = call(workload, "train", *words, "--compile", "--precision", "fp32", "--no-tf32", "--seed", "7", *how)
        assert ran.code == 0, ran.err
        found.append(ran.losses())
    assert len(found[0]) == 12
    assert found[1] == pytest.approx(found[0], rel=1e-3)
