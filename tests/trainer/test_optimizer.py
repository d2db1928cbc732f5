"""One optimizer object, whatever is inside: the loop, checkpoints and resuming need no more than that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.observed import same
from trainer.config import TrainOptions
from trainer.engine.optimization.muon import Muon, orthogonal
from trainer.engine.optimization.optimizer import (
    CombinedOptimizer,
    LossScaler,
    build_optimizer,
    fill_momentum,
    skips_on_device,
    usual_groups,
)
from trainer.errors import OptionError
from trainer.models.gpt2 import GPT2, Gpt2Shape

SHAPE = Gpt2Shape(layers=2, heads=2, width=16, seq_len=8, vocab_size=50)
KINDS = ("adamw", "muon", "sgd")


def a_model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(SHAPE)


def an_optimizer(model: GPT2, kind: str, lr: float = 1e-2) -> torch.optim.Optimizer:
    options = TrainOptions(optimizer=kind, lr=lr)
    return build_optimizer(model, model.parameter_groups(options.weight_decay), options, torch.float32)


def train(model: GPT2, optimizer: torch.optim.Optimizer, steps: range) -> float:
    loss = torch.zeros(())
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * group["lr_scale"] * (1 - step / 50)
        tokens = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(step % 5))
        loss = model(tokens[:, :-1], tokens[:, 1:]) / 32
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


@pytest.mark.parametrize("kind", KINDS)
def test_each_learns(kind: str) -> None:
    model = a_model()
    optimizer = an_optimizer(model, kind)
    first = train(model, optimizer, range(1))
    assert train(model, optimizer, range(1, 41)) < 0.95 * first


@pytest.mark.parametrize("kind", KINDS)
def test_from_its_state_training_continues_bit_by_bit(kind: str, tmp_path: Path) -> None:
    straight = a_model()
    train(straight, an_optimizer(straight, kind), range(8))

    first = a_model()
    optimizer = an_optimizer(first, kind)
    train(first, optimizer, range(5))
    torch.save([first.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")

    second = a_model()
    optimizer = an_optimizer(second, kind)
    weights, state = torch.load(tmp_path / "state.pt", weights_only=True)
    second.load_state_dict(weights)
    optimizer.load_state_dict(state)
    train(second, optimizer, range(5, 8))
    for name, expected in straight.state_dict().items():
        assert torch.equal(second.state_dict()[name], expected), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_rate_and_gradient_makes_all_state_and_moves_nothing(kind: str) -> None:
    """A rank without a checkpoint gets room so for the state of one that has it (engine/checkpoints/resume.py)."""
    model = a_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = an_optimizer(model, kind)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(after, before[name]) for name, after in model.state_dict().items())
    trained = a_model()
    reference = an_optimizer(trained, kind)
    train(trained, reference, range(1))
    shapes = [
        [{name: getattr(value, "shape", None) for name, value in o.state[p].items()} for p in m.parameters()]
        for m, o in ((model, optimizer), (trained, reference))
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_device_skips_a_step_the_first_one_too(kind: str, dtype: torch.dtype) -> None:
    model = a_model()
    optimizer = an_optimizer(model, kind)
    scaler = LossScaler("cpu", enabled=dtype is torch.float16)
    assert skips_on_device(optimizer)
    fill_momentum(optimizer)
    tokens = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(0))
    weights, saved = [], []
    for void in (True, False, True):
        scaler.scale(model(tokens[:, :-1], tokens[:, 1:])).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        scaler.step_unless(torch.tensor(void), optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        weights.append(copy.deepcopy(model.state_dict()))
        saved.append(copy.deepcopy(optimizer.state_dict()["state"]))
    assert same(weights[0], a_model().state_dict())
    assert not any(value.any() for one in saved[0].values() for value in one.values())
    assert not same(weights[1], weights[0])
    assert same(weights[2], weights[1])
    assert same(saved[2], saved[1])


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_no_flag_skips_an_update_that_is_not_fused(kind: str) -> None:
    options = TrainOptions(optimizer=kind, fused=False)
    assert not skips_on_device(build_optimizer(a_model(), None, options, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_flag_that_is_not_set_changes_no_bit_of_muon(dtype: torch.dtype) -> None:
    models = a_model(), a_model()
    for model in models:
        options = TrainOptions(optimizer="muon", lr=1e-2)
        optimizer = build_optimizer(model, model.parameter_groups(options.weight_decay), options, dtype)
        if model is models[1]:
            step = optimizer.step

            def flagged(optimizer: torch.optim.Optimizer = optimizer, step: Callable[[], None] = step) -> None:
                optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]  # as GradScaler gives it
                step()

            optimizer.step = flagged  # type: ignore[method-assign]
        train(model, optimizer, range(4))
    assert same(models[0].state_dict(), models[1].state_dict())


def test_momentum_from_zero_is_torchs_first_step() -> None:
    models = a_model(), a_model()
    for model in models:
        optimizer = an_optimizer(model, "sgd")
        if model is models[1]:
            fill_momentum(optimizer)
        train(model, optimizer, range(3))
    assert same(models[0].state_dict(), models[1].state_dict())


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest() -> None:
    model = a_model()
    optimizer = an_optimizer(model, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    train(model, optimizer, range(1))
    by_muon = {name for name, p in model.named_parameters() if "momentum_buffer" in optimizer.state[p]}
    kinds = ("attention.qkv", "attention.proj", "up", "down")
    assert by_muon == {f"blocks.{layer}.{kind}.weight" for layer in (0, 1) for kind in kinds}
    assert all("exp_avg" in optimizer.state[p] for name, p in model.named_parameters() if name not in by_muon)


def test_every_weight_is_in_one_group_and_keeps_its_own_rate() -> None:
    model = a_model()
    parts = list(model.parameters())
    groups = [{"params": parts[:3], "lr_scale": 0.1}, {"params": parts[3:], "weight_decay": 0.0}]
    optimizer = build_optimizer(model, groups, TrainOptions(lr=1e-2), torch.float32)
    assert [group["lr"] for group in optimizer.param_groups] == [pytest.approx(1e-3), 1e-2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    for kind in KINDS:
        placed = [p for group in an_optimizer(model, kind).param_groups for p in group["params"]]
        assert sorted(map(id, placed)) == sorted(map(id, parts))


def test_the_usual_groups_leave_first_and_last_layer_to_adamw() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Conv2d(1, 2, 3), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 9))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden, ends, flat = ([names[id(p)] for p in group["params"]] for group in usual_groups(model, 0.1))
    assert hidden == ["2.weight"]
    assert ends == ["0.weight", "1.weight", "4.weight"]
    assert flat == ["1.bias", "2.bias", "3.weight", "3.bias", "4.bias"]


def test_muon_without_a_hidden_matrix_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(OptionError, match="no hidden matrices"):
        build_optimizer(model, None, TrainOptions(optimizer="muon"), torch.float32)


def moved(optimizer: torch.optim.Optimizer, weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
    return weights


def test_stacked_matrices_are_orthogonalised_each_for_itself() -> None:
    torch.manual_seed(0)
    start = torch.randn(24, 8)
    gradients = [[torch.randn(24, 8)] for _ in range(3)]
    whole = start.clone().requires_grad_()
    (stacked,) = moved(Muon([{"params": [whole], "parts": 3}], 0.02, torch.float32), [whole], gradients)
    pieces = [piece.clone().requires_grad_() for piece in start.chunk(3)]
    alone = moved(
        Muon([{"params": pieces}], 0.02, torch.float32), pieces, [list(step[0].chunk(3)) for step in gradients]
    )
    torch.testing.assert_close(stacked, torch.cat(alone))


def test_an_orthogonal_matrix_has_singular_values_near_one() -> None:
    torch.manual_seed(0)
    group = Muon([{"params": [torch.zeros(2, 2, requires_grad=True)]}], 0.02, torch.float32).param_groups[0]
    for found in (orthogonal(torch.randn(2, 16, 40), group), orthogonal(torch.randn(2, 40, 16), group)):
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.4
        assert values.max() < 1.4
