"""Which NVIDIA driver serves which CUDA."""

from __future__ import annotations

import re

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
    """Whether this driver cannot run programs of this CUDA.

    A CUDA newer than the table is judged by what the driver says of itself: its own major version or older runs.
    """
    minimum = minimum_driver(cuda)
    if minimum and version(driver):
        return version(driver) < version(minimum)
    serves, wanted = version(driver_cuda)[:1], version(cuda)[:1]
    return bool(serves and wanted) and serves < wanted


def runs(architectures: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a program built for these runs on such a card.

    Machine code (`sm_80`) runs on cards of the same major version and the same or a later minor one; intermediate code
    (`compute_90`) runs on all later cards; a suffix (`sm_90a`) ties it to that card alone.
    """
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if not match:
            continue
        built = (int(match.group(2)), int(match.group(3)))
        if match.group(4):
            fits = built == capability
        else:
            fits = built <= capability and (match.group(1) == "compute" or built[0] == capability[0])
        if fits:
            return True
    return False
