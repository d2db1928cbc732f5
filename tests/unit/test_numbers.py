"""Numbers that machines write are within bounds, or unknown."""

from __future__ import annotations

import pytest

from orchestrator.specs.numbers import real, whole


@pytest.mark.parametrize("text", ["", "-1", "²", "٣", "1_0", " 1", "9" * 17, "9" * 5000, "0x1", "1.0", "1e3"])
def test_values_that_are_no_numbers_within_bounds(text: str) -> None:
    assert whole(text) is None


def test_whole_numbers() -> None:
    assert (whole("0"), whole("007"), whole("1000000000000000")) == (0, 7, 10**15)
    assert (whole("256", most=255), whole("255", most=255)) == (None, 255)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e5", "1.", ".5", "--1", "9" * 400, "٣.0"])
def test_what_is_no_decimal_within_bounds(text: str) -> None:
    assert real(text) is None


def test_decimals() -> None:
    assert (real("-1.5"), real("1732300000.123456789"), real("3")) == (-1.5, 1732300000.123456789, 3.0)
