"""Contents and names of an image: profile, content hash, tags, labels, pip settings of this computer. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contract.import_names import normal_name
from orchestrator.plan.packages import Additions
from orchestrator.specs.labels import (
    LABEL_ADDITIONS,
    LABEL_COMMIT,
    LABEL_CONTENT,
    LABEL_CUDA,
    LABEL_MODULES,
    LABEL_PROFILE,
    LABEL_PROJECT,
    LABEL_PYTHON,
    LABEL_TORCH,
    PACKAGE_LABELS,
)

EXPECTED = {"cpu": ("1.4 GB", "about 3 min"), "cuda": ("5.6 GB", "about 8 min")}
"""Size of an image, and the time that its build takes on a usual connection."""
DEFAULT_BASE = "orch/base:bookworm"
"""Debian 12, slim: pulled, or made from Debian's packages."""
DEFAULT_BASE_PYTHON = "cp311"
DOCKERFILE = "images/Dockerfile"
SITE = "images/site"
"""Folder of the build context that holds what is private to a site. No stage that reads it ends up in the image."""

_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One image, decided before anything is built."""

    project: str
    profile: str
    base: str = DEFAULT_BASE
    cuda: str = ""
    """CUDA of torch's build, such as `12.6`; empty for the CPU and for the build that the package index has."""
    files: Mapping[str, bytes] = field(repr=False)
    """Contents by path in the build context: Dockerfile, requirements, trainer. Wheels and private settings are not
    among them: they say where packages come from, not which."""
    additions: Additions = field(default_factory=Additions)
    """Packages of the project, in layers above."""
    git_commit: str = ""
    version: str = ""

    @property
    def content(self) -> str:
        """Hash of all that decides what is in the image: the same content is never built twice."""
        digest = hashlib.sha256(f"{self.profile}\0{self.base}\0".encode())
        for path, content in sorted(self.files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode())
            digest.update(content)
        digest.update(f"{self.additions.digest}{self.cuda and f'cuda {self.cuda}'}".encode())
        return digest.hexdigest()

    @property
    def tag(self) -> str:
        """Tag for people and plans: the newest image of this profile."""
        return f"orch/{self.project}:{self.profile}"

    @property
    def content_tag(self) -> str:
        """The same, never given to another content."""
        return f"{self.tag}-{self.content[:12]}"

    @property
    def pins(self) -> dict[str, str]:
        """Version of every package, by normalised name."""
        return pins_of(self.files)


def pins_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Version of every package that these files of a build context pin, by normalised name."""
    lines = b"\n".join(files.get(f"images/{name}.txt", b"") for name in ("torch", "requirements"))
    found = (_PIN.match(line) for line in lines.decode().splitlines())
    return {normal_name(pin.group(1)): pin.group(2) for pin in found if pin}


@dataclass(frozen=True, kw_only=True)
class ImageVersions:
    """Labels of a finished image."""

    python: str
    torch: str
    cuda: str
    onednn: bool
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of those in PACKAGE_LABELS that it has."""
    modules: Sequence[str] = ()
    """First names of the modules that it has beside the standard library."""


def labels(recipe: Recipe, found: ImageVersions, created: str) -> dict[str, str]:
    """The labels of a finished image: versions as found in it, not as hoped for."""
    return {
        "org.opencontainers.image.title": f"orch {recipe.profile}",
        "org.opencontainers.image.description": f"PyTorch {found.torch} and the trainer of project {recipe.project}",
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.revision": recipe.git_commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": recipe.base,
        LABEL_PROJECT: recipe.project,
        LABEL_PROFILE: recipe.profile,
        LABEL_TORCH: found.torch,
        LABEL_CUDA: found.cuda,
        LABEL_PYTHON: found.python,
        LABEL_COMMIT: recipe.git_commit,
        LABEL_CONTENT: recipe.content,
        LABEL_ADDITIONS: recipe.additions.digest,
        LABEL_MODULES: " ".join(found.modules),
        **{label: found.packages.get(package, "") for package, label in PACKAGE_LABELS.items()},
    }


def image_step(
    profiles: Iterable[str], packages: str, nodes: Sequence[str], *, copies: Collection[str] = (), each: bool = False
) -> str:
    """The step that brings the images of these profiles to nodes, with its cost, for a question; no node: only built.

    `packages`: the file that names more; `copies`: profiles whose image a machine has; `each`: every node builds.
    """
    names = {"cpu": "the CPU image", "cuda": "the CUDA image"}
    more = f" with your {packages}" if packages else ""

    def listed(of: Iterable[str], costs: int) -> str:
        return " and ".join(f"{names[one]}{more}, {', '.join(EXPECTED[one][:costs])}" for one in of)

    to, wanted = ", ".join(nodes), sorted(set(profiles))
    if not (new := [one for one in wanted if one not in copies]):
        return f"copy {listed(wanted, 1)}, to {to}"
    build = f"build {listed(new, 2)}"
    old = listed([one for one in wanted if one in copies], 1)
    copy = f"copy it and {old}, to {to}" if old else f"copy it to {to}"
    return f"{build}, on each of {to}" if each else f"{build}, and {copy}" if to else build


def pip_conf(environment: Mapping[str, str]) -> str:
    """This site's pip settings as a pip.conf; empty where there are none. Paths of this computer are left out."""
    lines = []
    for setting in _PIP_SETTINGS:
        words = environment.get(f"PIP_{setting.upper().replace('-', '_')}", "").split()
        if values := [word for word in words if not word.startswith("file:")]:
            lines.append(f"{setting} = {' '.join(values)}")
    return "\n".join(["[global]", *lines, ""]) if lines else ""


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Proxy settings as build arguments. Every builder knows these names and keeps them out of the history."""
    found = {name: environment.get(name) or environment.get(name.upper(), "") for name in _PROXIES}
    return {spelling: value for name, value in found.items() if value for spelling in (name, name.upper())}


def needed_wheels(names: Iterable[str], recipe: Recipe, architecture: str) -> list[str]:
    """List the files of a wheel folder that this image would install, or that its additions may install."""
    return [name for name in sorted(names) if _is_needed(name, recipe, architecture)]


def _is_needed(name: str, recipe: Recipe, architecture: str) -> bool:
    parts = name.removesuffix(".whl").split("-")
    if not name.endswith(".whl") or len(parts) not in (5, 6):
        return False
    package, version, python, platform = normal_name(parts[0]), parts[1], parts[-3], parts[-1]
    wanted = recipe.pins.get(package)
    if recipe.additions:  # the image below has the others
        wanted = version if wanted is None or recipe.additions.names(package) else None
    elif package in ("torch", "torchvision") and wanted and recipe.profile == "cpu":
        wanted += "+cpu"
    elif package in ("torch", "torchvision") and wanted and recipe.cuda:
        wanted += f"+cu{recipe.cuda.replace('.', '')}"
    any_python = recipe.base != DEFAULT_BASE or parts[-2] == "abi3" or python.startswith("py")
    return (
        version == wanted
        and (any_python or DEFAULT_BASE_PYTHON in python.split("."))
        and (platform == "any" or platform.endswith(architecture))
    )
