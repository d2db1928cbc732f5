"""Downloads of `orch launch --fetch-once`: their sources, and the manifest that a node keeps of each in its cache.

A manifest may come from another machine and is not trusted: paths and sizes are checked when it is read.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

FETCHED = "fetched"
"""Folder of the cache with a manifest for each download."""
PARTIAL = f"{FETCHED}/partial"
"""Folder of the cache with what was not downloaded or copied to its end; the next try continues it."""
HUB, CHECKPOINTS = "huggingface/hub", "torch/hub/checkpoints"
MOST_FILES, MOST_BYTES = 20_000, 2**44
EXPECTED = "hf:ORG/NAME, hf:datasets/ORG/NAME, hf:ORG/NAME@REVISION, or https://HOST/FILE.pth"

_REPO = re.compile(
    r"hf:(?P<data>datasets/)?(?P<repo>(\w[\w.-]{0,95}/)?\w[\w.-]{0,95})(@(?P<rev>\w[\w./-]{0,199}))?", re.A
)
_FILE = re.compile(r"\w[\w.+-]{0,199}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PATH = re.compile(
    rf"({HUB}/(models|datasets)--[\w.-]+/(blobs|snapshots|refs)|{CHECKPOINTS})/[^\x00-\x1f\x7f]{{1,500}}", re.A
)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_TARGET = re.compile(r"(\.\./){2,20}blobs/[0-9a-f]{40,64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A repository of the Hugging Face hub, or a file for torch.hub."""

    text: str
    """Reference as it was typed; its hash names the manifest."""
    repo: str = ""
    is_dataset: bool = False
    revision: str = "main"
    url: str = ""
    file: str = ""
    """Name of the file behind `url`."""
    sha256: str = ""
    """Hash of that file; empty: not given."""

    @property
    def manifest(self) -> str:
        """Path of its manifest in the cache."""
        return f"{FETCHED}/{hashlib.sha256(self.text.encode()).hexdigest()[:16]}.json"

    @property
    def folder(self) -> str:
        """Folder of the repository in the cache."""
        kind = "datasets" if self.is_dataset else "models"
        return f"{HUB}/{kind}--{self.repo.replace('/', '--')}"


@dataclass(frozen=True, kw_only=True)
class CachedFile:
    """A file of a download; its path is relative to the cache."""

    path: str
    size: int
    """Bytes."""
    sha256: str

    @property
    def partial(self) -> str:
        """Path of the beginning of this file, while it is incomplete."""
        return partial_of(self.path)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a complete download: nothing of it is used before all files are there."""

    source: str
    files: tuple[CachedFile, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links by path, with their targets: a snapshot's names for its files."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Content of small files by path: the commit of a revision."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files)


def partial_of(path: str) -> str:
    return f"{PARTIAL}/{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def read_source(text: str) -> Source:
    """ValueError, in words: it is none, or its address is not safe."""
    if found := _REPO.fullmatch(text):
        revision = found["rev"] or "main"
        if ".." in revision.split("/"):
            raise ValueError(f"expected {EXPECTED}")
        return Source(text=text, repo=found["repo"], is_dataset=bool(found["data"]), revision=revision)
    parts = urlsplit(text)
    file, sha256 = parts.path.rpartition("/")[2], parts.fragment.removeprefix("sha256=")
    if parts.scheme not in ("http", "https") or not parts.hostname or not _FILE.fullmatch(file):
        raise ValueError(f"expected {EXPECTED}")
    if parts.fragment and not _SHA256.fullmatch(sha256):
        raise ValueError("after # comes sha256= with 64 hexadecimal digits")
    if parts.username or parts.password:
        raise ValueError("a URL with a password would be readable on the nodes")
    if parts.scheme == "http" and not sha256 and not _is_private(parts.hostname):
        raise ValueError("http does not protect the file: https://…, or add #sha256=HASH")
    return Source(text=text, url=parts._replace(fragment="").geturl(), file=file, sha256=sha256)


def _is_private(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost"


def encode_manifest(manifest: Manifest) -> str:
    return json.dumps(asdict(manifest), indent=1, sort_keys=True)


def decode_manifest(text: str, source: Source) -> Manifest:
    """Decode the manifest of a download of `source`. ValueError: the text is no such manifest."""
    try:
        read: dict[str, Any] = json.loads(text)
        files = tuple(CachedFile(**one) for one in read["files"])
        manifest = Manifest(source=read["source"], files=files, links=read["links"], texts=read["texts"])
        fits = (
            manifest.source == source.text
            and 0 < len(files) <= MOST_FILES
            and len(manifest.links) + len(manifest.texts) <= 2 * MOST_FILES
            and all(_fits(one, source) for one in files)
            and all(is_inside(path, source) and _TARGET.fullmatch(to) for path, to in manifest.links.items())
            and all(is_inside(path, source) and _COMMIT.fullmatch(held) for path, held in manifest.texts.items())
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError("the manifest of the download is not valid")
    return manifest


def is_inside(path: str, source: Source) -> bool:
    """Return whether this path belongs to the download's part of the cache, and can be a word of a line."""
    top = f"{source.folder}/" if source.repo else f"{CHECKPOINTS}/{source.file}"
    parts = PurePosixPath(path).parts
    plain = "/".join(parts) == path and ".." not in parts and path == path.strip() and path.isprintable()
    return plain and path.startswith(top) and bool(_PATH.fullmatch(path))


def _fits(one: CachedFile, source: Source) -> bool:
    sized = type(one.size) is int and 0 <= one.size < MOST_BYTES
    return sized and bool(_SHA256.fullmatch(one.sha256)) and is_inside(one.path, source)
