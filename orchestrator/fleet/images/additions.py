"""Reads the files that name a project's own packages: requirements, Debian packages, a Dockerfile with its folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docker.utils.build import exclude_paths

from orchestrator.fleet.images.build_context import image_pins
from orchestrator.plan.packages import (
    Additions,
    check_dockerfile,
    debian_packages,
    project_requirements,
    requirements_of,
)
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import ImageSpec

CONTEXT_LIMIT = 256_000_000
"""Bytes of a Dockerfile's folder: a larger one holds data or models, which belong into no image."""


def read_additions(image: ImageSpec) -> Additions:
    """The packages that these files add to the image. ConfigError: a file is missing or says what cannot be built."""
    requirements, constraints = _requirements(image.requirements)
    return Additions(
        requirements=requirements,
        constraints=constraints,
        apt=debian_packages(_text(image.apt), image.apt) if image.apt else (),
        dockerfile=_dockerfile(image.dockerfile),
        context=_context(Path(image.dockerfile)) if image.dockerfile else {},
    )


def _requirements(path: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if path is None:
        return (), ()
    pins = image_pins()
    if not path.endswith(".toml"):
        return requirements_of(path, _text, pins["torch"])
    lock = Path(path).with_name("uv.lock")
    return project_requirements(_toml(path), _toml(str(lock)) if lock.is_file() else {}, path, pins["torch"], pins)


def _dockerfile(path: str | None) -> bytes:
    if path is None:
        return b""
    text = _text(path)
    check_dockerfile(text, path)
    return text.encode()


def _context(dockerfile: Path) -> Mapping[str, bytes]:
    """Files of the Dockerfile's folder by path, without those that its .dockerignore excludes."""
    folder = dockerfile.parent
    ignored = folder / ".dockerignore"
    lines = ignored.read_text().splitlines() if ignored.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    names = exclude_paths(str(folder), [*patterns, ".git"], dockerfile=dockerfile.name)
    files = {name: folder / name for name in sorted(names) if (folder / name).is_file()}
    size = sum(path.stat().st_size for path in files.values())
    if size > CONTEXT_LIMIT:
        largest = max(files, key=lambda name: files[name].stat().st_size)
        raise ConfigError(
            f"{folder} has {size / 1e6:.0f} MB for {dockerfile.name} to copy from; at most {CONTEXT_LIMIT // 10**6} MB",
            hint=f"echo '{largest.split('/')[0]}' >> {ignored}   # what the image does not need",
        )
    return {name: path.read_bytes() for name, path in files.items()}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="--requirements, --apt and --dockerfile name files"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None


def _toml(path: str) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
