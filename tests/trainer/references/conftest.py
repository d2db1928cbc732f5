"""Comparison of the trainer's mathematics with reference implementations: one test a row, and the run ends with a table
of the deviations that it measured.

    python -m pytest tests/trainer/references
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
Agrees = Callable[..., None]


@pytest.fixture
def agrees(figure: Callable[[str], None]) -> Agrees:
    """`agrees(what, reference, logits=(deviation, bound), …)`: note a row of the table, then hold it to its bounds."""

    def note(what: str, reference: str, **deviations: tuple[float, float]) -> None:
        named = ", ".join(f"{name.replace('_', ' ')} {found:.2g}" for name, (found, _) in deviations.items())
        figure(f"{what:<52}  {reference:<32}  {named}")
        far = {name: pair for name, pair in deviations.items() if not pair[0] <= pair[1]}
        assert not far, f"{what} against {reference}: deviation and bound"

    return note
