"""A short seed of what `python -m benchmarks.chaos` does for as long as one likes."""

from __future__ import annotations

import pytest

from tests.conftest import Figure
from tests.lab.chaos import a_run, as_undisturbed, play, shuffled
from tests.lab.conftest import NAMES, Orch

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SECONDS, SEED = 90, 3


def test_whatever_breaks_the_losses_are_those_of_an_undisturbed_run(orch: Orch, figure: Figure) -> None:
    with a_run(orch, NAMES[:3], SEED, small_disk=True) as chaos:
        play(chaos, shuffled(chaos, SECONDS), figure)
    assert len(chaos.faults) >= 2
    figure(f"chaos, seed {SEED}: {as_undisturbed(chaos)}")
