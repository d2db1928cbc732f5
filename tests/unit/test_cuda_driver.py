"""Driver and card that an image's CUDA needs."""

from __future__ import annotations

import pytest

from orchestrator.specs.cuda import minimum_driver, runs, too_old


@pytest.mark.parametrize(
    ("cuda", "minimum"),
    [
        ("10.2", "440.33"),
        ("11.0", "450.36.06"),
        ("11.1", "450.80.02"),
        ("11.8", "450.80.02"),
        ("12.0", "525.60.13"),
        ("12.8.1", "525.60.13"),
        ("13.0", "580.65.06"),
        ("14.0", ""),
        ("9.0", ""),
        ("", ""),
        ("twelve", ""),
    ],
)
def test_minimum_driver(cuda: str, minimum: str) -> None:
    assert minimum_driver(cuda) == minimum


@pytest.mark.parametrize(
    ("driver", "driver_cuda", "cuda", "expected"),
    [
        ("525.60.13", "12.0", "12.8", False),
        ("525.60.12", "12.0", "12.8", True),
        ("525.147.05", "12.0", "12.8", False),  # 147 is more than 60, as numbers go
        ("595.58.03", "13.2", "11.8", False),
        ("570.124.04", "12.8", "13.0", True),
        ("570.124.04", "12.8", "14.1", True),  # not in the table: the driver's own word
        ("700.10", "14.0", "14.1", False),
        ("700.10", "", "14.1", False),  # not known, so nothing is claimed
        ("", "", "12.8", False),
    ],
)
def test_too_old(driver: str, driver_cuda: str, cuda: str, expected: bool) -> None:
    assert too_old(driver, driver_cuda, cuda) is expected


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (("sm_80",), (8, 6), True),  # machine code runs on later minors of its major version
        (("sm_86",), (8, 0), False),
        (("sm_80",), (9, 0), False),
        (("compute_80",), (9, 0), True),  # intermediate code runs on all later cards
        (("compute_90",), (8, 6), False),
        (("sm_90a",), (9, 0), True),
        (("sm_90a",), (9, 1), False),
        (("compute_90a",), (12, 0), False),
        (("sm_120",), (12, 0), True),
        (("sm_100",), (12, 0), False),
        (("nonsense",), (8, 6), False),
    ],
)
def test_runs(architectures: tuple[str, ...], capability: tuple[int, int], expected: bool) -> None:
    assert runs(architectures, capability) is expected
