"""One line of a requirements.txt as an image takes it: what pip accepts there is accepted. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from orchestrator.plan.requirement_notes import (
    PYTHON,
    WHEEL,
    notes_of_builds,
    notes_of_package,
    notes_of_urls,
    shown,
)

_LOCAL = ("file:", ".", "/", "~")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=|(?=[.~/]))")
_PASSED = (
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--pre",
    "--prefer-binary", "--only-binary", "--no-binary", "--require-hashes", "--use-feature",
)  # fmt: skip
"""Options of pip that stand in a line of their own."""
_OF_LINE = ("--hash", "--config-settings", "--config-setting", "-C", "--global-option")
"""Options of pip that follow a requirement."""
_TORCH = ("torch", "torchvision", "torchaudio")
_TORCH_INDEX = re.compile(r"download\.pytorch\.org/whl/\S")
_BUILD = re.compile(r"(==\s*[0-9][\w.]*)\+(?:cu[0-9]+|cpu|rocm[0-9.]*|xpu)\b")
_WHEEL_TORCH = re.compile(r"(?:torch|pt)(?P<version>2\.?[0-9]{1,2})(?![0-9])")
_CONDA = re.compile(r"[\w.-]+=[\w.!+-]+=[\w.]+")
_CONDA_LINE = re.compile(r"(?:channels|dependencies|prefix):|@EXPLICIT")
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "python_version": "3.11"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of a requirements.txt as the image takes it."""

    text: str = ""
    """The line for pip; empty: it is left out."""
    refusal: str = ""
    """Reason why it cannot be installed in an image."""
    notes: tuple[str, ...] = ()
    """Changes that were made to the line, and parts of it that have no effect here."""


def read_line(written: str, torch: str) -> Line:
    """`torch`: the version in the image."""
    line, notes = written, list[str]()
    if editable := _EDITABLE.match(line):
        line = line[editable.end() :]
        if "://" in line:
            notes.append("it is installed as a package: an image has no editable ones")
    if refusal := _refusal(line, torch, editable=bool(editable)):
        return Line(refusal=refusal)
    if line.startswith("-"):
        if _TORCH_INDEX.search(line):
            return Line(notes=(f"{shown(line)} is left out: torch and torchvision come with the image's build",))
        return Line(text=line, notes=(*notes_of_builds(line, torch), *notes_of_urls(line)))
    found = requirement_of(line)
    if found and canonicalize_name(found.name) in _TORCH and _BUILD.search(line):
        line = _BUILD.sub(r"\1", line)
        notes.append(f"{found.name} is taken for the CPU or the CUDA of the image, not for that of {shown(written)}")
    return Line(text=line, notes=(*notes, *notes_of_package(line, found), *notes_of_urls(line)))


def requirement_of(line: str) -> Requirement | None:
    """The requirement of a line, without pip's options for it."""
    try:
        return Requirement(re.split(r"\s+-", line, maxsplit=1)[0])
    except InvalidRequirement:
        return None


def is_of_cuda(package: str) -> bool:
    """Return whether torch's build decides about this package: what one device needs must not constrain the other."""
    return package in ("triton", "torchvision", "torchaudio") or package.startswith("nvidia-")


def conda_file(path: str, lines: list[str]) -> str:
    """The reason, where these are lines of a file of conda; otherwise empty."""
    conda = path.endswith((".yml", ".yaml")) or any(map(_CONDA_LINE.match, lines)) or any(map(_CONDA.fullmatch, lines))
    return f"{path} is a file of conda, which pip cannot read" if conda else ""


def _refusal(line: str, torch: str, *, editable: bool) -> str:
    option, _, value = re.sub(r"[\s=]+", " ", line, count=1).partition(" ")
    if option in ("-f", "--find-links") and "://" not in value:
        return f"pip's option {option} names a folder of this computer: orch build --wheels {value[:80] or 'DIR'}"
    if line.startswith("-"):
        return "" if option in _PASSED else f"pip's option {option[:80]} has no meaning in an image"
    if line.startswith(_LOCAL) or "@ file:" in line or (editable and "://" not in line):
        given = f"-e {line}" if editable else line
        return f"{given[:80]!r} is a path of this computer; code of yours is sent at launch: orch launch --workdir ."
    more = re.findall(r"\s(-[^\s=]*)", line)
    if unknown := [one for one in more if one not in _OF_LINE]:
        return f"{shown(line)!r} is not a requirement: pip takes {unknown[0][:40]} on its command line only"
    if wheel := WHEEL.search(line):
        return _refused_wheel(wheel, torch)
    found = requirement_of(line)
    if found is None:
        return "" if re.match(r"[a-z+]{2,20}://", line) else f"{shown(line)!r} is not a requirement"
    return _excluded(found, torch) if canonicalize_name(found.name) == "torch" else ""


def _excluded(found: Requirement, torch: str) -> str:
    if found.url:
        return "torch comes with the image: leave it out of this file"
    wanted = Requirement(_BUILD.sub(r"\1", str(found)))
    counts = not wanted.marker or wanted.marker.evaluate(dict(_LINUX))
    if counts and wanted.specifier and not wanted.specifier.contains(torch, prereleases=True):
        return f"torch{found.specifier} excludes torch {torch}, which the image has: leave torch out of this file"
    return ""


def _refused_wheel(wheel: re.Match[str], torch: str) -> str:
    """A wheel that pip would refuse, or that was compiled against another torch."""
    if canonicalize_name(wheel["name"]) == "torch":
        return "torch comes with the image: leave it out of this file"
    built = _WHEEL_TORCH.search(wheel["version"].replace("%2B", "+").partition("+")[2])
    if built and built["version"].replace(".", "") != "".join(torch.split(".")[:2]):
        return f"the wheel of {wheel['name']} was compiled for torch {built['version']}, and the image has {torch}"
    pythons = [int(one) for one in re.findall(r"cp3([0-9]{1,2})", wheel["python"])]
    if pythons and wheel["abi"] != "abi3" and max(pythons) < PYTHON[1]:
        return f"the wheel of {wheel['name']} is for Python 3.{max(pythons)}, and the image has 3.{PYTHON[1]}"
    return ""
