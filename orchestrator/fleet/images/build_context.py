"""Build context of an image: Dockerfile, requirements, the packages of the image, this site's private settings, and the
files that name a project's own packages."""

from __future__ import annotations

import codecs
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import platformdirs
from docker.utils.build import exclude_paths

from orchestrator.fleet.runs.code_files import PACKAGES, agent_names
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import SITE, Recipe, needed_wheels, pins_of, pip_conf, proxies
from orchestrator.plan.packages import (
    LAYER,
    Additions,
    RequirementLines,
    check_dockerfile,
    debian_packages,
    project_requirements,
    requirements_of,
)
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import ImageSpec

CONTEXT_LIMIT = 256_000_000
"""Bytes of a Dockerfile's folder: a larger one holds data or models, which belong into no image."""
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""First bytes of a file that PowerShell's `>` has written."""
_PACKAGE = Path(__file__).parents[2]
_IMAGE_FILES = ("Dockerfile", Path(LAYER).name, "torch.txt", "requirements.txt", "site/pip.sh")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Settings that this site's network needs; none of them ends up in an image."""

    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment from which pip and proxy settings are read."""
    wheels: Path | None = None
    """Folder of wheels that are preferred to the index."""
    ca_bundle: Path | None = None
    """Certificate authorities for pip, in addition to the public ones."""

    @property
    def proxies(self) -> dict[str, str]:
        return proxies(self.environment)

    def check(self) -> None:
        """Refuse paths that lead nowhere, before anything is sent."""
        if self.wheels and not self.wheels.is_dir():
            raise ConfigError(f"--wheels {self.wheels}: no such folder")
        if self.ca_bundle and not self.ca_bundle.is_file():
            raise ConfigError(f"--ca-bundle {self.ca_bundle}: no such file")


def site_of(environment: Mapping[str, str], *, wheels: Path | None = None, ca_bundle: Path | None = None) -> Site:
    """Settings of this computer, overridden by those given."""
    folder = environment.get("PIP_FIND_LINKS", "")
    bundle = environment.get("PIP_CERT") or environment.get("SSL_CERT_FILE")
    site = Site(
        environment=environment,
        wheels=wheels or (Path(folder) if folder and Path(folder).is_dir() else None),
        ca_bundle=ca_bundle or (Path(bundle) if bundle and Path(bundle).is_file() else None),
    )
    site.check()
    return site


def source_files() -> dict[str, bytes]:
    """Files that determine an image's content, by path. Works from a checkout and from an installation."""
    images = next(path for path in (_PACKAGE / "images", _PACKAGE.parent / "images") if (path / "Dockerfile").exists())
    files = {f"images/{name}": (images / name).read_bytes() for name in _IMAGE_FILES}
    return files | {name: (PACKAGES / name).read_bytes() for name in agent_names()}


def image_pins() -> dict[str, str]:
    """Version of every package of the image, by normalised name."""
    return pins_of(source_files())


def read_additions(image: ImageSpec) -> Additions:
    """The packages that these files add to the image. ConfigError: a file is missing or says what cannot be built."""
    lines = _requirements(image.requirements)
    return Additions(
        requirements=lines.requirements,
        constraints=lines.constraints,
        notes=lines.notes,
        apt=debian_packages(_text(image.apt), image.apt) if image.apt else (),
        dockerfile=_dockerfile(image.dockerfile),
        context=_context(Path(image.dockerfile)) if image.dockerfile else {},
    )


def _requirements(path: str | None) -> RequirementLines:
    if path is None:
        return RequirementLines()
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
        content = Path(path).read_bytes()
        return content.decode("utf-16" if content.startswith(UTF16) else "utf-8")
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


def source_commit() -> str:
    """The commit of the checkout that this package runs from, `-dirty` where files differ; empty outside of one."""
    argv = ("git", "-C", str(_PACKAGE.parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    answer = LocalNode().run(argv)
    return answer.stdout.strip() if answer.exit_code == 0 else ""


def spool_folder() -> Path:
    """Folder for temporary archives: on disk, because /tmp is in memory on many machines."""
    folder = Path(platformdirs.user_cache_dir("orch"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wheels_for(recipe: Recipe, site: Site, architecture: str) -> list[Path]:
    """The files of the wheel folder that this image would install."""
    if not site.wheels:
        return []
    names = (path.name for path in site.wheels.iterdir())
    return [site.wheels / name for name in needed_wheels(names, recipe, architecture)]


@contextmanager
def packed(files: Mapping[str, bytes], site: Site, wheels: Sequence[Path]) -> Iterator[BinaryIO]:
    """The build context as a tar archive: the same bytes for the same content, so that builders' caches hold."""
    private = {f"{SITE}/pip.conf": pip_conf(site.environment).encode()}
    if site.ca_bundle:
        private[f"{SITE}/ca-bundle.crt"] = site.ca_bundle.read_bytes()
    with TemporaryFile(dir=spool_folder()) as spool:
        with tarfile.open(fileobj=spool, mode="w") as archive:
            for path, content in sorted({**files, **private}.items()):
                if content or path in files:
                    archive.addfile(_member(path, len(content)), BytesIO(content))
            for wheel in wheels:
                with wheel.open("rb") as content_of:
                    archive.addfile(_member(f"{SITE}/wheels/{wheel.name}", wheel.stat().st_size), content_of)
        spool.seek(0)
        yield spool


def archive_of(files: Mapping[str, bytes]) -> BytesIO:
    """A small build context, in memory."""
    spool = BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as archive:
        for path, content in sorted(files.items()):
            archive.addfile(_member(path, len(content)), BytesIO(content))
    spool.seek(0)
    return spool


def _member(path: str, size: int) -> tarfile.TarInfo:
    """Mode, owner and time are always the same: builders hash them."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    return info
