"""Moments of the optimizer in less memory: formats, updates, skipped steps, checkpoints."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainer.observed import same
from trainer.config import TrainOptions
from trainer.engine.checkpoints.resume import _prepare_optimizer, _settings, _tensors, _with_state
from trainer.engine.optimization import compact
from trainer.engine.optimization.compact import CompactOptimizer
from trainer.engine.optimization.moment_formats import BLOCK, EXPONENTS, FORMATS, in_blocks, rounding
from trainer.engine.optimization.optimizer import (
    LossScaler,
    build_optimizer,
    load_optimizer,
    skips_on_device,
    standing_still,
)

KINDS = ("adamw", "sgd", "muon")
COMPACT = ("bf16", "int8")
LIMITS = {"bf16": 2**-7, "int8": 0.13}
"""Largest relative error of a single value."""


class Net(nn.Module):
    """Sizes that are no multiple of a block, a kernel with another order of values, and a weight that is unused."""

    uses_all = False

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 37)
        self.conv = nn.Conv2d(1, 5, 3, padding=1)
        self.hidden = nn.Linear(37 * 5, 300)
        self.middle = nn.Linear(300, 40)
        self.out = nn.Linear(40, 50)
        self.unused = nn.Linear(3, 3)
        self.conv.weight.data = torch.randn(5, 1, 3, 3).to(memory_format=torch.channels_last) / 3

    def forward(self, x: Tensor) -> Tensor:
        seen = self.conv(self.table(x)[:, None, None]).flatten(1)
        found: Tensor = self.out(torch.tanh(self.middle(torch.tanh(self.hidden(seen)))))
        return found + 0 * self.unused(found.new_zeros(3)).sum() if self.uses_all else found


def a_net() -> Net:
    torch.manual_seed(0)
    return Net()


def built(net: nn.Module, kind: str, how: str, **more: Any) -> torch.optim.Optimizer:
    given: Any = {"optimizer": kind, "optimizer_state": how, "lr": 1e-2, "compile": False, **more}
    options = TrainOptions(**given)
    return build_optimizer(net, None, options, torch.float32)


def train(net: Net, optimizer: torch.optim.Optimizer, steps: range) -> float:
    loss = torch.zeros(())
    for step in steps:
        x = torch.randint(50, (16,), generator=torch.Generator().manual_seed(step % 5))
        loss = nn.functional.cross_entropy(net(x), (x * 7 + 3) % 50)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


# ── Formats ───────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 10**6), st.floats(-24, 24), st.sampled_from(COMPACT), st.booleans())
def test_a_value_comes_back_within_a_step_of_its_format_and_then_for_good(
    seed: int, step: int, power: float, name: str, squares: bool
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(4 * BLOCK, generator=drawn) * torch.rand(4 * BLOCK, generator=drawn) ** 4
    values = values * 10.0 ** (power / 2)
    values = values * values if squares else values
    how, chance = FORMATS[name], rounding(torch.tensor(float(step)))[squares]
    codes, exponents = how.encode(values, chance, squares=squares)
    found = how.decode(codes, exponents, squares=squares)
    peaks = values.view(-1, BLOCK).abs().amax(1, keepdim=True).expand(-1, BLOCK).flatten()
    large = values.abs() > peaks * (2.0**-28 if squares else 2.0**-13)
    assert ((found - values).abs() <= LIMITS[name] * values.abs())[large].all()
    assert (found.sign() * values.sign() >= 0).all()
    if squares:
        assert (found[values > 2.0**-120] > 0).all()  # nothing is divided by zero
    later = rounding(torch.tensor(float(step + 7)))[squares]
    again = how.decode(*how.encode(found, later, squares=squares), squares=squares)
    assert again.equal(found)


@pytest.mark.parametrize("name", COMPACT)
def test_rounding_favours_neither_side(name: str) -> None:
    values = torch.rand(BLOCK, generator=torch.Generator().manual_seed(1)) + 0.5
    total, steps = torch.zeros(BLOCK), 500
    for step in range(1, steps + 1):
        codes, exponents = FORMATS[name].encode(values, rounding(torch.tensor(float(step)))[0], squares=False)
        total += FORMATS[name].decode(codes, exponents, squares=False)
    assert ((total / steps - values).abs() / values).max() < 0.002


@pytest.mark.parametrize("name", COMPACT)
def test_a_mean_that_moves_less_than_half_a_step_still_moves(name: str) -> None:
    """Rounded to the nearest, bfloat16 would keep 1.0 for ever at a beta of 0.999."""
    how, values = FORMATS[name], torch.ones(BLOCK)
    for step in range(1, 1001):
        chance = rounding(torch.tensor(float(step)))[1]
        codes, exponents = how.encode(values * 0.999, chance, squares=True)
        values = how.decode(codes, exponents, squares=True)
    assert float(values.mean()) == pytest.approx(0.999**1000, rel=0.05)


# ── Updates ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", [256, 1 << 17])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_in_float32_its_updates_are_torchs(kind: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compact.PART, "cpu", part)
    ours, theirs = a_net(), a_net()
    reference = built(theirs, kind, "fp32")
    which = compact.ADAMW if kind == "adamw" else compact.SGD_NESTEROV
    groups = [{**group, "params": []} for group in reference.param_groups]
    by_name = dict(ours.named_parameters())
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    for group, target in zip(reference.param_groups, groups, strict=True):
        target["params"] = [by_name[names[id(parameter)]] for parameter in group["params"]]
    optimizer = CompactOptimizer(groups, which, {}, FORMATS["fp32"])
    train(theirs, reference, range(10))
    train(ours, optimizer, range(10))
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], expected, rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("how", COMPACT)
@pytest.mark.parametrize("kind", KINDS)
def test_each_learns_as_with_float32(kind: str, how: str) -> None:
    plain, net = a_net(), a_net()
    expected = train(plain, built(plain, kind, "fp32"), range(60))
    optimizer = built(net, kind, how)
    found = train(net, optimizer, range(60))
    assert found == pytest.approx(expected, rel=0.05, abs=0.05)
    net, again = a_net(), a_net()
    assert train(net, built(net, kind, how), range(10)) == train(again, built(again, kind, how), range(10))


@pytest.mark.parametrize(("how", "most"), [("fp32", 8.0), ("bf16", 4.0), ("int8", 2.01)])
def test_bytes_of_a_weight(how: str, most: float) -> None:
    net = nn.Linear(1024, 512, bias=False)
    optimizer = built(net, "adamw", how)
    net(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    held = sum(one.numel() * one.element_size() for one in optimizer.state[net.weight].values() if one.dim())
    assert held / net.weight.numel() <= most


# ── Steps that the device skips ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("how", COMPACT)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_device_skips_a_step_the_first_one_too(kind: str, how: str, dtype: torch.dtype) -> None:
    net = a_net()
    optimizer = built(net, kind, how)
    scaler = LossScaler("cpu", enabled=dtype is torch.float16)
    assert skips_on_device(optimizer)
    weights, saved = [], []
    for void in (True, False, True):
        scaler.scale(net(torch.arange(16)).square().sum()).backward()
        scaler.unscale_(optimizer)
        if void:
            net.middle.weight.grad = torch.full_like(net.middle.weight, math.nan)
        scaler.step_unless(torch.tensor(void), optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        weights.append(copy.deepcopy(net.state_dict()))
        saved.append(copy.deepcopy(optimizer.state_dict()["state"]))
    assert same(weights[0], a_net().state_dict())
    assert not any(
        value.any() for one in saved[0].values() for name, value in one.items() if not name.endswith(EXPONENTS)
    )
    assert not same(weights[1], weights[0])
    assert same(weights[2], weights[1])
    assert same(saved[2], saved[1])


# ── Checkpoints ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", COMPACT)
@pytest.mark.parametrize("kind", KINDS)
def test_from_its_state_training_continues_bit_by_bit(kind: str, how: str, tmp_path: Path) -> None:
    straight, first, second = a_net(), a_net(), a_net()
    train(straight, built(straight, kind, how), range(8))
    optimizer = built(first, kind, how)
    train(first, optimizer, range(5))
    torch.save([first.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    optimizer = built(second, kind, how)
    weights, state = torch.load(tmp_path / "state.pt", weights_only=True)
    second.load_state_dict(weights)
    assert load_optimizer(optimizer, state) == ""
    train(second, optimizer, range(5, 8))
    assert same(second.state_dict(), straight.state_dict())


@pytest.mark.parametrize("before", FORMATS)
@pytest.mark.parametrize("after", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_format_is_converted_and_named(kind: str, before: str, after: str) -> None:
    net, other, rank = a_net(), a_net(), a_net()
    net.uses_all = other.uses_all = True
    optimizer = built(net, kind, before)
    train(net, optimizer, range(5))
    saved = copy.deepcopy(optimizer.state_dict())
    changed = built(other, kind, after)
    other.load_state_dict(net.state_dict())
    message = load_optimizer(changed, copy.deepcopy(saved))
    assert message == (f"optimizer state: {before} in the checkpoint, {after} from now on" if before != after else "")
    stored = {name: tuple(value.shape) for name, value in saved["state"][0].items() if value.dim()}
    for name, shape in stored.items():
        if not name.endswith(EXPONENTS):
            assert tuple(changed.state_dict()["state"][0][name].shape) == shape
    expected, found = train(net, optimizer, range(5, 12)), train(other, changed, range(5, 12))
    assert found == pytest.approx(expected, rel=0.1, abs=0.05)
    # A rank without the file makes room for exactly these tensors, in the same order.
    mine: Any = SimpleNamespace(model=other, optimizer=changed)
    theirs: Any = SimpleNamespace(model=rank, optimizer=built(rank, kind, after))
    _prepare_optimizer(theirs, [_settings(group) for group in changed.param_groups], _with_state(mine))
    kinds = [[(name, one.shape, one.dtype) for name, one in _tensors(each).items()] for each in (mine, theirs)]
    assert kinds[0] == kinds[1]


def test_a_state_of_another_model_is_refused() -> None:
    saved = built(a_net(), "adamw", "fp32")
    net = a_net()
    train(net, optimizer := built(net, "adamw", "fp32"), range(1))
    state = optimizer.state_dict()
    state["state"][0]["exp_avg"] = torch.zeros(3, 3)
    with pytest.raises((ValueError, RuntimeError)):
        load_optimizer(built(a_net(), "adamw", "int8"), state)
    assert not saved.state


def test_what_a_trial_began_to_remember_is_forgotten() -> None:
    net, fresh = a_net(), a_net()
    optimizer = built(net, "adamw", "int8")
    with standing_still(net, optimizer) as step:
        step()
        step()
    train(net, optimizer, range(3))
    train(fresh, built(fresh, "adamw", "int8"), range(3))
    assert same(net.state_dict(), fresh.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("how", COMPACT)
def test_compiled_it_is_one_function_for_all_parts(how: str) -> None:
    plain, net = a_net(), a_net()
    expected = train(plain, built(plain, "adamw", how), range(4))
    optimizer = built(net, "adamw", how, compile=True)
    assert isinstance(optimizer, CompactOptimizer)
    assert optimizer._compiled
    assert train(net, optimizer, range(4)) == pytest.approx(expected, rel=1e-2)
    assert optimizer._compiled  # it has not given up
    assert in_blocks(torch.ones(3)).numel() == BLOCK
