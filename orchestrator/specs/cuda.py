"""CUDA: the drivers that serve a version, the cards that a build of torch has code for, and torch's builds."""

from __future__ import annotations

import re
from collections.abc import Mapping

MINIMUM_DRIVER: dict[tuple[int, int], tuple[int, ...]] = {
    (13, 0): (580, 65, 6),
    (12, 0): (525, 60, 13),
    (11, 1): (450, 80, 2),
    (11, 0): (450, 36, 6),
    (10, 2): (440, 33),
    (10, 1): (418, 39),
    (10, 0): (410, 48),
}
"""Oldest Linux driver that runs programs built with this CUDA and later ones of the same major version.

Source: NVIDIA, CUDA Toolkit Release Notes, table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility", and CUDA Compatibility, "Minor Version Compatibility"
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
"""

_CUDA_13 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
TORCH_BUILDS: Mapping[str, tuple[str, ...]] = {
    "13.0": _CUDA_13,
    "12.6": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
}
"""Stable CUDA builds of the image's torch for Linux on x86-64, newest first, with the cards that each has code for.

Source: pytorch/pytorch, RELEASE.md, "PyTorch CUDA Support Matrix" for 2.13 (pull requests 187075, 182849). CUDA 12.8
has not been built since torch 2.12 (issue 178665).
"""
DEFAULT_BUILD = "13.0"
"""The build that the package index has under torch's plain version."""


def version(text: str) -> tuple[int, ...]:
    """`525.60.13` and `12.8` as numbers; empty where it is not a version."""
    return tuple(int(part) for part in text.split(".")) if re.fullmatch(r"\d+(\.\d+)*", text) else ()


def minimum_driver(cuda: str) -> str:
    """Oldest driver for this CUDA; empty where the table does not know it."""
    wanted = version(cuda)[:2]
    known = [entry for entry in MINIMUM_DRIVER if wanted and entry[0] == wanted[0] and entry <= wanted]
    if not known:
        return ""
    return ".".join(f"{part:02d}" if place else str(part) for place, part in enumerate(MINIMUM_DRIVER[max(known)]))


def too_old(driver: str, driver_cuda: str, cuda: str) -> bool:
    """Return whether this driver cannot run programs of this CUDA.

    For a CUDA newer than the table, the driver's own report decides: its major version or older runs.
    """
    minimum = minimum_driver(cuda)
    if minimum and version(driver):
        return version(driver) < version(minimum)
    serves, wanted = version(driver_cuda)[:1], version(cuda)[:1]
    return bool(serves and wanted) and serves < wanted


def runs(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Return whether a program built for these runs on such a card.

    Machine code (`sm_80`) runs on cards of the same major version and the same or a later minor one; intermediate code
    (`compute_90`) runs on all later cards; a suffix (`sm_90a`) ties it to that card alone.
    """
    for name in architectures:
        if match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name):
            built = (int(match[2]), int(match[3]))
            later = not match[4] and built < capability
            if built == capability or (later and (match[1] == "compute" or built[0] == capability[0])):
                return True
    return False
