"""The wheels that each image variant installs exist: resolved at the package indexes, not downloaded.

Collected everywhere; a variant whose index cannot be reached is skipped, with its URL.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from orchestrator.fleet.images.build_context import image_pins
from orchestrator.plan.cuda import TORCH_BUILDS
from orchestrator.specs.cuda import DEFAULT_BUILD

pytestmark = [pytest.mark.index, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()
TORCH = image_pins()["torch"]
VISION = image_pins()["torchvision"]
ARCHITECTURES = ("x86_64", "aarch64")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24", "manylinux_2_17", "manylinux2014")


def argument(name: str) -> str:
    """Default of an ARG of the Dockerfile."""
    found = re.search(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert found, f"images/Dockerfile has no ARG {name}"
    return found[1]


@dataclass(frozen=True)
class Variant:
    """An image as `orch build` builds it."""

    name: str
    local: str
    """Local tag of torch's version; empty for the build of the package index."""
    index: str
    """Index beside the package index; empty: none."""
    cuda: str
    """Suffix of the CUDA libraries that torch asks for; empty for the CPU."""

    @property
    def equals(self) -> str:
        return "==" if self.local else "==="


VARIANTS = (
    Variant("cpu", "+cpu", argument("TORCH_CPU_INDEX"), ""),
    Variant("cuda-13.0", "", "", "cu13"),
    Variant("cuda-12.6", "+cu126", f"{argument('TORCH_CUDA_INDEX')}126", "cu12"),
)


@cache
def unreachable(url: str) -> str:
    """Reason why this index cannot be asked; empty if it answers."""
    try:
        with urlopen(f"{url}/torch/", timeout=20):  # noqa: S310  # a URL of the Dockerfile
            return ""
    except HTTPError as error:
        return f"{url} answers {error.code}"
    except (URLError, OSError) as error:
        return f"{url} cannot be reached: {getattr(error, 'reason', error)}"


def in_folder(package: str, version: str, architecture: str) -> bool:
    """Return whether the folder of wheels of this computer has it: then a build asks no further index."""
    folder = Path(os.environ.get("PIP_FIND_LINKS", "") or "/nonexistent")
    return any(folder.glob(f"{package}-{version}-cp311-cp311-*_{architecture}.whl"))


def resolve(variant: Variant, architecture: str, *requirements: str, where: Path) -> list[dict[str, Any]]:
    """Resolve what pip would install for Python 3.11 on this architecture. Skips if an index cannot be asked."""
    index = variant.index
    if index and in_folder("torch", f"{TORCH}{variant.local}", architecture):
        index = ""
    if index and (reason := unreachable(index)):
        pytest.skip(reason)
    report = where / "report.json"
    argv = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report), "--ignore-installed",
        "--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11",
        *(word for abi in ("cp311", "abi3", "none") for word in ("--abi", abi)),
        *(word for platform in PLATFORMS for word in ("--platform", f"{platform}_{architecture}")),
        *(("--extra-index-url", index) if index else ()), "--retries", "1", "--target", str(where / "none"),
        *requirements,
    ]  # fmt: skip
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    if ran.returncode and re.search(r"ConnectionError|Max retries|Could not connect|timed out", ran.stderr):
        pytest.skip(f"the package index cannot be reached: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return found


def test_the_variants_are_those_of_orch_build() -> None:
    assert [variant.name.removeprefix("cuda-") for variant in VARIANTS[1:]] == list(TORCH_BUILDS)
    assert VARIANTS[1].name == f"cuda-{DEFAULT_BUILD}"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_torch_exists_in_the_build_of_the_variant(variant: Variant, architecture: str, tmp_path: Path) -> None:
    (torch,) = resolve(variant, architecture, f"torch{variant.equals}{TORCH}{variant.local}", where=tmp_path)
    assert torch["metadata"]["version"] == f"{TORCH}{variant.local}"
    file = torch["download_info"]["url"].rpartition("/")[2]
    assert re.search(rf"-cp311-cp311-manylinux\w*_{architecture}\.whl$", file), file
    cuda = {found[1] for line in torch["metadata"]["requires_dist"] if (found := re.search(r"-(cu\d\d)\b", line))}
    assert cuda == ({variant.cuda} if variant.cuda else set())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_torchvision_fits_torch(variant: Variant, architecture: str, tmp_path: Path) -> None:
    if variant.index and (reason := unreachable(variant.index)):
        pytest.skip(reason)
    (vision,) = resolve(variant, architecture, f"torchvision{variant.equals}{VISION}{variant.local}", where=tmp_path)
    assert vision["metadata"]["version"] == f"{VISION}{variant.local}"
    requirements = [Requirement(line) for line in vision["metadata"]["requires_dist"]]
    (torch,) = [one for one in requirements if one.name == "torch"]
    assert torch.specifier == SpecifierSet(f"=={TORCH}")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_other_packages_exist_as_wheels(architecture: str, tmp_path: Path) -> None:
    listed = str(ROOT / "images" / "requirements.txt")
    found = {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in
             resolve(VARIANTS[1], architecture, "-r", listed, where=tmp_path)}  # fmt: skip
    assert found.items() <= image_pins().items()
    assert "transformers" in found
