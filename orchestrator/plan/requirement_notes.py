"""Notes on lines of a requirements.txt that pip takes and that will not do in an image what they say. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from contract.import_names import is_source, packages_of
from orchestrator.specs.secret_forms import hide_secrets

PYTHON = (3, 11)
"""Python of the image that orch builds; older ones do not run its agent."""
WHEEL = re.compile(r"/(?P<name>[\w.]+)-(?P<version>[\w.!+%]+)-(?P<python>[\w.]+)-(?P<abi>\w+)-[\w.]+\.whl\b")
_CUDA = re.compile(r"\+(?:cu|pt[0-9]+cu)[0-9]+|-cu1[0-9]\b")
_NEVER = {
    "pytorch": "the index has no usable package of this name; torch is in the image: leave it out",
    "tensorflow-gpu": "the package is gone: tensorflow",
    **dict.fromkeys(
        ("pywin32", "pypiwin32", "pywinpty", "wmi"), 'exists for Windows only; add: ; sys_platform == "win32"'
    ),
}


def shown(line: str) -> str:
    """The line as it may be printed: without passwords and tokens."""
    return hide_secrets(line)[:80]


def notes_of_package(line: str, found: Requirement | None) -> Iterator[str]:
    wheel = WHEEL.search(line)
    if wheel and wheel["abi"] != "abi3" and (other := re.search(r"cp3(1[2-9])", wheel["python"])):
        yield f"the wheel of {wheel['name']} is for Python 3.{other[1]}; the image has 3.{PYTHON[1]} without --base"
    if found is None:
        return
    name = canonicalize_name(found.name)
    brought = packages_of(found.name)
    if name in _NEVER:
        yield f"{found.name}: {_NEVER[name]}"
    elif not found.url and name not in [canonicalize_name(one) for one in brought]:
        yield (
            f"{found.name}: the index has another project of this name; the module is in {brought[0]}"
            if is_source(brought[0])
            else f"{found.name} is the name of a module; its package is {brought[0]}"
        )
    if name == "triton" or name.startswith("nvidia-") or _CUDA.search(line):
        yield f"{shown(line)} is for CUDA: useless in a CPU image, and in a CUDA image torch brings the one that fits"


def notes_of_builds(line: str, torch: str) -> Iterator[str]:
    """A list of wheels for one build of torch, such as PyG's."""
    if _CUDA.search(line):
        yield f"{shown(line)} has builds for CUDA: in a CPU image take those of +cpu"
    built = re.search(r"\btorch-(?P<version>[0-9]+\.[0-9]+)", line)
    if built and built["version"] != ".".join(torch.split(".")[:2]):
        yield f"{shown(line)} has builds for torch {built['version']}, and the image has {torch}"


_SSH = re.compile(r"git\+ssh://|(?:^|[\s/])git@")


def notes_of_urls(line: str) -> Iterator[str]:
    if _SSH.search(line):
        yield f"{shown(line)} needs an SSH key, which a build does not have: use https"
    elif hide_secrets(line) != line:
        yield (
            f"{shown(line)} holds a password or token, which the build's node can read: for an index, set "
            "PIP_EXTRA_INDEX_URL where you call orch build"
        )
    if "${" in line:
        yield f"{shown(line)}: variables are not set in a build; for an index, set PIP_EXTRA_INDEX_URL"
