"""Parts of a model that are compiled in place, and what a machine needs for that."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.forked import alone
from trainer.engine.hardware import compiling
from trainer.models import resnet
from trainer.models.gpt2 import GPT2, Computation, Gpt2Shape

CPU = torch.device("cpu")


def test_blocks_that_repeat_are_compiled_and_other_models_whole() -> None:
    blocks = [nn.Linear(3, 3) for _ in range(3)]
    repeated = nn.Sequential(nn.Embedding(5, 3), nn.ModuleList(blocks), nn.Linear(3, 5))
    assert list(compiling.regions(repeated)) == blocks
    tapering = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 2)])
    assert list(compiling.regions(tapering)) == [tapering]
    assert compiling.usual_cost_s(repeated) < compiling.usual_cost_s(tapering)


def test_on_a_gpu_the_loss_of_all_tokens_is_compiled_too() -> None:
    model = GPT2(Gpt2Shape(vocab_size=64, layers=2, heads=2, width=16, seq_len=8))
    assert compiling.parts(model, CPU) == list(model.blocks)
    assert compiling.parts(model, torch.device("cuda")) == [*model.blocks, model.loss]
    assert compiling.parts(model.loss, torch.device("cuda")) == [model.loss], "not twice"


def test_gradients_of_a_recurrent_layer_come_together() -> None:
    """Nearly at the end where the model begins with it, compiled or not; a convolution ahead of it takes longer."""
    calls, lstm, head = nn.Embedding(50, 4), nn.LSTM(4, 4, 2, bidirectional=True), nn.Linear(8, 1)
    first = {name for name, _ in lstm.named_parameters() if "_l0" in name}
    names = {id(one): name for name, one in lstm.named_parameters()}
    assert {names[id(one)] for one in compiling.last_together(nn.Sequential(calls, lstm, head))} == first
    pictures = nn.Sequential(nn.Conv2d(3, 4, 3), lstm, head)
    assert compiling.last_together(pictures) == []
    pictures[1]._compiled_call_impl = lambda: None
    assert compiling.last_together(pictures) == [*pictures[0].parameters()]
    wide = nn.Sequential(nn.Linear(500, 4), lstm, head)
    assert compiling.last_together(wide) == [*wide[0].parameters()], "compiled, as its LSTM is"


def test_evaluation_runs_what_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_requirement", lambda device: "")
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
    compiling.compile_in_place(model, CPU, backend="eager")
    before = [block._compiled_call_impl for block in model]
    inside = []

    def fail_inside() -> None:
        with compiling.uncompiled(model):
            inside.extend(block._compiled_call_impl for block in model)
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        fail_inside()
    assert inside == [None, None]
    assert [block._compiled_call_impl for block in model] == before


@pytest.mark.slow
def test_gradients_come_block_by_block() -> None:
    """The exchange of the first ones overlaps so with the rest of the backward pass; one graph serves all."""
    graphs, blocks, at = alone(gradients_of_blocks)
    assert graphs == 1
    assert blocks == [3, 2, 1, 0], "the order in which blocks have all their gradients"
    assert at == sorted(at)
    assert at[0] < 0.6, "of all gradients, when the last block has its own"


def gradients_of_blocks() -> tuple[int, list[int], list[float]]:
    """Number of graphs; blocks in the order in which they have all their gradients, with the share of all by then."""
    from torch._dynamo.utils import counters

    compiling.missing_requirement = lambda *_: ""
    torch.manual_seed(0)
    model = GPT2(Gpt2Shape(vocab_size=64, layers=4, heads=2, width=16, seq_len=8), 0.0, Computation())
    compiling.compile_in_place(model, CPU, backend="aot_eager")
    came: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    tokens = torch.randint(0, 64, (2, 8))
    model(tokens, tokens).backward()
    ends = {b: max(i for i, name in enumerate(came) if name.startswith(f"blocks.{b}.")) for b in range(4)}
    order = sorted(ends, key=lambda block: ends[block])
    total = len(list(model.parameters()))
    return counters["stats"]["unique_graphs"], order, [ends[b] / total for b in order]


def test_missing_requirements(tmp_path: Path) -> None:
    assert "g++ is not there" in compiling.missing_requirement(CPU, {}, lambda name: None, tmp_path)
    assert "clang++ is not there" in compiling.missing_requirement(CPU, {"CXX": "clang++"}, lambda name: None, tmp_path)
    assert "Python.h is not there" in compiling.missing_requirement(CPU, {}, lambda name: f"/bin/{name}", tmp_path)
    (tmp_path / "Python.h").touch()
    assert compiling.missing_requirement(CPU, {}, lambda name: f"/bin/{name}", tmp_path) == ""


@pytest.mark.slow
def test_in_place_keeps_the_names_and_the_figures() -> None:
    """A process of its own, as torch's tracing stays in one. Traced, not translated: that takes ten seconds more."""
    if compiling.missing_requirement(CPU):
        pytest.skip(compiling.missing_requirement(CPU))
    assert 1 <= alone(compare_ragged_batches) <= 2


def compare_ragged_batches() -> int:
    """Number of graphs that were compiled."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))  # torch's own class: see compile_in_place
    names, x = list(model.state_dict()), torch.randn(9, 4)
    expected = model(x)
    assert compiling.compile_in_place(model, CPU, dynamic=True, backend="eager") == ""
    assert list(model.state_dict()) == names
    for rows in (9, 5, 3, 7, 8, 6):
        torch.testing.assert_close(model(x[:rows]), expected[:rows])
    pickle.dumps(model)  # as for worker processes
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
def test_checkpointed_blocks_count_a_batch_once_when_compiled() -> None:
    alone(compare_checkpointed)


def compare_checkpointed() -> None:
    def trained(checkpointing: bool, compiled: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        torch.manual_seed(0)
        model = resnet.ResNet(resnet.SHAPES["resnet-small"], 1, 3, checkpointing).train()
        if compiled:
            assert compiling.compile_in_place(model, CPU, backend="aot_eager") == ""
        for _ in range(2):
            model(torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return gradients, {name: buffer.float() for name, buffer in model.named_buffers()}

    expected = trained(False, False)
    for checkpointing, compiled in ((True, False), (True, True), (False, True)):
        torch.testing.assert_close(trained(checkpointing, compiled), expected, rtol=1e-4, atol=1e-5)


def test_where_it_cannot_be_the_model_stays_as_it_is() -> None:
    model = nn.Linear(2, 2)
    missing = compiling.compile_in_place(model, torch.device("cuda", 0))
    if not missing:
        pytest.skip("this machine has what a GPU needs")
    assert model(torch.ones(1, 2)).shape == (1, 2)
    assert model._compiled_call_impl is None
