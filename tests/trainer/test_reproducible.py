"""Chance that is the same again, and operators that cannot be."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from trainer.engine.seeding import (
    be_deterministic,
    determinism_explained,
    operator_without,
    seed_everything,
)
from trainer.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )
    chance = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1:]
    random.setstate(chance[0])
    np.random.set_state(chance[1])
    torch.set_rng_state(chance[2])


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: S311 - no secret


@pytest.mark.parametrize("seed", [0, 1337, 1 << 40])
def test_every_source_of_chance(seed: int) -> None:
    seed_everything(seed)
    first = drawn()
    seed_everything(seed)
    assert drawn() == first
    seed_everything(seed + 1)
    assert all(new != old for new, old in zip(drawn(), first, strict=True))


def test_deterministic() -> None:
    environ = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    be_deterministic(environ)
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}  # the user's own word counts
    be_deterministic(environ := {})
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark


def test_an_operator_without_a_deterministic_form() -> None:
    """`put_` is one on every device."""
    be_deterministic({})
    explained = pytest.raises(ConfigurationError, match="--deterministic: put_ has no deterministic form")
    with explained, determinism_explained():
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), determinism_explained():
        raise RuntimeError("shapes differ")
    assert operator_without("set CUBLAS_WORKSPACE_CONFIG=:4096:8 for deterministic behavior") == "a product in cuBLAS"
