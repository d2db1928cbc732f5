"""The image of a simulated machine: built when missing, known by a hash of what it is made of."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound

from orchestrator.specs.errors import EngineError
from orchestrator.specs.labels import LABEL_CONTENT

BASES = ("orch/base:bookworm", "debian:bookworm-slim")
"""Base images in order of preference: the one that `orch build` made, then the one it is made of."""
REPOSITORY, SLURM_REPOSITORY = "orch/lab-node", "orch/lab-slurm"

_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def node_image(client: docker.DockerClient, base: str | None, report: Callable[[str], None]) -> str:
    """The tag of the node image, built on this base first where it is missing."""
    return _image(client, REPOSITORY, _base(client, base, report), report)


def slurm_image(client: docker.DockerClient, base: str | None, report: Callable[[str], None]) -> str:
    """The tag of the image of a cluster's machines: the node image with Slurm, built where it is missing."""
    node = node_image(client, base, report)
    return _image(client, SLURM_REPOSITORY, (node, str(client.images.get(node).id)), report)


def _image(client: docker.DockerClient, repository: str, base: tuple[str, str], report: Callable[[str], None]) -> str:
    """The tag of an image of ours on this base (name and id), built where it is missing."""
    base_name, base_id = base
    folder = _recipe_folder(repository.rpartition("/")[2])
    tag = f"{repository}:{_content_hash(folder, base_id)}"
    try:
        client.images.get(tag)
    except ImageNotFound:
        report(f"building {repository} on {base_name} (once, about half a minute)")
        _build(client, folder, tag, base_name)
    return tag


def _base(client: docker.DockerClient, wanted: str | None, report: Callable[[str], None]) -> tuple[str, str]:
    for name in (wanted,) if wanted else BASES:
        try:
            return name, str(client.images.get(name).id)
        except ImageNotFound:
            continue
    name = wanted or BASES[-1]
    report(f"pulling {name}")
    repository, _, tag = name.partition(":")
    try:
        return name, str(client.images.pull(repository, tag or "latest").id)
    except DockerException as error:
        raise EngineError(
            f"no base image for the nodes: {name} is not on this computer and cannot be pulled",
            hint="make the base with `orch build`, or name an image of Debian that you have: --base IMAGE",
        ) from error


def _build(client: docker.DockerClient, folder: Path, tag: str, base: str) -> None:
    proxies = {name: os.environ[name] for key in _PROXIES for name in (key, key.upper()) if name in os.environ}
    answers = client.api.build(
        fileobj=_context(folder),
        custom_context=True,
        tag=tag,
        buildargs={"BASE": base, **proxies},
        labels={LABEL_CONTENT: tag.partition(":")[2]},
        rm=True,
        forcerm=True,
        decode=True,
    )
    lines: list[str] = []
    for answer in answers:
        lines.append(answer.get("stream", "").rstrip())
        if "error" in answer:
            last = "\n  ".join([line for line in lines if line][-5:])
            raise EngineError(
                f"building the node image failed: {answer['error'].strip()}\n  {last}",
                hint="it installs Debian packages: is a package mirror in reach, or a proxy to be set in http_proxy?",
            )


def _context(folder: Path) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name)
    stream.seek(0)
    return stream


def _content_hash(folder: Path, base_id: str) -> str:
    digest = hashlib.sha256(base_id.encode())
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _recipe_folder(name: str) -> Path:
    """`images/NAME`: inside the installed package, or next to it in a clone."""
    package = Path(str(files("orchestrator")))
    return next(folder for folder in (package / "images" / name, package.parent / "images" / name) if folder.is_dir())
