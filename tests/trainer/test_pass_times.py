"""Times of a forward and backward pass, operator by operator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizer_module
from torch.utils._python_dispatch import _get_current_dispatch_mode

from trainer.engine.hardware.pass_times import PassTimer, PassTimes
from trainer.models.layers import RecomputedBlock

CPU = torch.device("cpu")


class Block(RecomputedBlock):
    """A matrix product of this width, and operators beside it."""

    def __init__(self, width: int, beside: int) -> None:
        super().__init__()
        self.product, self.beside = nn.Linear(width, width), beside

    def compute(self, x: Tensor) -> Tensor:
        for _ in range(self.beside):
            x = x.tanh()
        return self.product(x)


class Model(nn.Module):
    """Two blocks, and a loss of its own that no block contains."""

    def __init__(self, width: int, beside: int, at_the_end: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, beside) for _ in range(2))
        self.at_the_end = at_the_end

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        for _ in range(self.at_the_end):
            x = x.sin()
        return x.square().sum()


def timed(model: Model, rows: int, width: int) -> PassTimes:
    """The quickest of some passes."""
    x, found = torch.randn(rows, width), []
    for _ in range(5):
        timer = PassTimer(model, list(model.blocks), CPU)
        model(x).backward()
        times = timer.read()
        assert times
        found.append(times)
    return min(found, key=lambda times: times.whole_s)


def test_operators_beside_products_are_what_can_be_fused() -> None:
    products, others = timed(Model(512, beside=1), 256, 512), timed(Model(32, beside=12), 4096, 32)
    assert others.fusable(others.wall_s) > 0.5
    assert products.fusable(products.wall_s) < 0.35
    assert others.fusable(4 * others.wall_s) == pytest.approx(others.fusable(others.wall_s) / 4), "in longer steps"
    assert others.fusable_s <= others.whole_s <= others.wall_s


def test_what_is_outside_the_regions_does_not_count() -> None:
    plain, head = timed(Model(64, beside=4), 2048, 64), timed(Model(64, beside=4, at_the_end=40), 2048, 64)
    assert head.whole_s > 2 * plain.whole_s
    assert head.fusable_s < 2 * plain.fusable_s


@pytest.mark.parametrize("recompute", [0, 1, "selective"])
def test_nothing_is_changed_and_what_is_computed_again_counts(recompute: int) -> None:
    torch.manual_seed(0)
    model, x = Model(8, beside=3), torch.randn(16, 8)
    for block in model.blocks:
        block.recompute = recompute
    expected = model(x)
    expected.backward()
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    timer = PassTimer(model, list(model.blocks), CPU)
    watched = model(x)
    watched.backward()
    assert watched.equal(expected)
    assert all(weight.grad.equal(grad) for weight, grad in zip(model.parameters(), gradients, strict=True))
    operators = timer._operators
    # In each block, tanh forward and backward, and forward again where it is not kept. Products: two forward; backward
    # two weights and one input, as the batch needs no gradient.
    assert operators.seen_inside - len(operators.kept) >= 2 * (9 if recompute else 6)
    assert len(operators.kept) == 5
    assert timer.read() is not None


def test_it_leaves_before_the_weights_change_and_after_the_first_pass() -> None:
    """A compiled optimizer would find itself watched; and of a step's micro-batches one is enough."""
    model, x = Model(8, beside=1), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(_get_current_dispatch_mode()))
    timer = PassTimer(model, list(model.blocks), CPU)
    model(x).backward()
    optimizer.step()
    assert seen == [None]
    assert timer.read() is not None
    again = PassTimer(model, list(model.blocks), CPU)
    model(x).backward()
    seconds = model(x)
    assert _get_current_dispatch_mode() is None
    seconds.backward()
    assert again.read() is not None
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer_module._global_optimizer_pre_hooks


def test_a_pass_without_an_end_has_no_times() -> None:
    class Failing(Model):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise MemoryError

    model = Failing(8, beside=1)
    timer = PassTimer(model, list(model.blocks), CPU)
    with pytest.raises(MemoryError):
        model(torch.randn(4, 8))
    assert timer.read() is None
    assert _get_current_dispatch_mode() is None
    assert PassTimer(model, [], CPU).read() is None
