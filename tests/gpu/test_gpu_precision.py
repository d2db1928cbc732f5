"""bfloat16 and float16 on a GPU, and float32 on the CPU beside it, train one model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.conftest import Torchrun


@pytest.mark.parametrize("way", ["fp32", "diloco"])
def test_three_precisions_train_one_model(tmp_path: Path, way: str) -> None:
    run = Torchrun(3, str(tmp_path), way, module="tests.trainer.mixed_ranks").result()
    assert run.code == 0, run.err
    ends = [json.loads(line.removeprefix("end ")) for line in run.out.splitlines() if line.startswith("end ")]
    assert sorted(end["dtype"] for end in ends) == ["bfloat16", "float16", "float32"]
    norms = [end["norm"] for end in ends]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)  # a GPU's optimizer rounds as no CPU's does
    (scale,) = {end["scale"] for end in ends}
    assert scale <= 2.0**15
    assert "loss scaled on all ranks for the float16 of node-1" in run.out
    assert "gloo (no GPU on node-2)" in run.out
