"""A short seed of what `python -m benchmarks.chaos` does for as long as one likes."""

from __future__ import annotations

from itertools import islice
from math import inf

import pytest

from tests.conftest import Figure
from tests.lab.chaos import a_run, as_undisturbed, play, shuffled
from tests.lab.conftest import NAMES, Orch
from tests.lab.underway import PROBE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

SEED, FAULTS = 292, 3
"""Begins with faults that test_survival.py lacks: container frozen, container crashed, disk full."""


def test_whatever_breaks_the_losses_are_those_of_an_undisturbed_run(orch: Orch, figure: Figure) -> None:
    with a_run(orch, PROBE, NAMES[:3], SEED, small_disk=True) as chaos:
        play(chaos, islice(shuffled(chaos, inf), FAULTS), figure)
    assert len(chaos.faults) == FAULTS
    figure(f"chaos, seed {SEED}: {as_undisturbed(chaos)}")
