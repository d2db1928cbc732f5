"""CUDA graphs are refused where a step would overwrite what is still needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.conftest import Call
from tests.trainer.test_text_training import folder, portion  # noqa: F401  # a fixture
from trainer.config import RankInfo, TrainOptions
from trainer.data.manifests import PreparedText
from trainer.engine.hardware.compiling import compile_in_place, undo
from trainer.engine.hardware.cuda_graphs import must_allow_graphs
from trainer.errors import OptionError
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape
from trainer.workloads.text import Text
from trainer.workloads.text_options import TextOptions

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=8, vocab_size=50)
ASKED: dict[str, Any] = {"compile": True, "cuda_graphs": True}


def allow(recompute: int = 0, device: str = "cuda", ranks: int = 1, micro_batches: int = 1, **options: Any) -> None:
    model = GPT2(SHAPE, computation=Computation(gradient_checkpointing=recompute))
    given = TrainOptions(**{**ASKED, **options})
    must_allow_graphs(given, model, torch.device(device), ranks=ranks, micro_batches=micro_batches)


def test_all_reasons_are_named_at_once() -> None:
    allow()
    allow(recompute=1, device="cpu", ranks=2, cuda_graphs=False)
    with pytest.raises(OptionError) as refused:
        allow(recompute=1, device="cpu", ranks=2, micro_batches=3, compile="auto")
    reasons = str(refused.value).splitlines()
    assert len(reasons) == 5
    for word, reason in zip(("on cpu", "--compile", "one rank", "3 micro-batches", "recomputed"), reasons, strict=True):
        assert word in reason


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"device": "cpu"}, "cpu"),
        ({"compile": False}, "--compile"),
        ({"ranks": 2}, "rank"),
        ({"recompute": 2}, "blocks"),
    ],
)
def test_each_reason_is_enough(asked: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        allow(**asked)


def test_only_those_who_ask_for_graphs_get_them() -> None:
    """torch itself refuses the option for another backend than its own."""
    compile_in_place(nn.Linear(2, 2), torch.device("cpu"), backend="eager")
    model = nn.Linear(2, 2)
    compile_in_place(model, torch.device("cpu"), cuda_graphs=True)
    assert model._compiled_call_impl is not None
    undo(model)


def test_a_training_on_a_cpu_is_refused(call: Call, data_dir: Path, tmp_path: Path) -> None:
    words = ("--preset", "tiny", "--data-dir", str(data_dir), "--run-dir", str(tmp_path), "--num-workers", "0")
    ran = call("gpt2", *words, "--max-steps", "1", "--compile", "--cuda-graphs")
    assert ran.code == 2
    assert "--cuda-graphs: they are for a GPU" in ran.err + ran.out


def test_texts_have_few_widths(folder: Path, tmp_path: Path) -> None:  # noqa: F811  # the fixture
    prepared = PreparedText.open(folder)
    choice = TextOptions(heads=prepared.head_weights, max_length=100, model_name=prepared.model_name)
    options = TrainOptions(data_dir=folder, run_dir=tmp_path, batch_size=8, **ASKED)
    text = Text(prepared, options, choice, RankInfo())
    order = text.order(1)
    widths = {text.batch(portion(order.take(8 * at, 8)))[2].shape[1] for at in range(12)}
    assert len(widths) > 1
    assert widths <= {*range(16, 100, 16), 100}


def test_a_pass_adds_to_no_gradient_of_the_pass_before() -> None:
    """A replay writes to the memory of the last one's gradients: the trials before a training make several passes."""
    model = nn.Linear(2, 1)
    compile_in_place(model, torch.device("cpu"), cuda_graphs=True)
    undo(model)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_cached_outputs_of_frozen_layers_are_no_part_of_a_replay(call: Call, folder: Path, tmp_path: Path) -> None:  # noqa: F811  # the fixture
    words = (
        "--data-dir",
        str(folder),
        "--run-dir",
        str(tmp_path),
        "--freeze-layers",
        "1",
        "--compile",
        "--cuda-graphs",
    )
    ran = call("text", *words)
    assert ran.code == 2
    assert "--no-cache-frozen" in ran.err + ran.out
