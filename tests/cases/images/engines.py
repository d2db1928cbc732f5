"""Engines in memory that save and load images as real ones do: layer by layer, by the ids of all layers up to it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import zstandard

from orchestrator.nodes.fake import Answer, FakeEngine
from orchestrator.nodes.interface import BuildRequest, Progress
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import EngineFacts, ImageFacts

ASKED = '{"python": "3.11.2", "torch": "2.13.0+%s", "cuda": "%s", "onednn": true}\n'


def answer(spec: ContainerSpec) -> Answer:
    """Answer as a good image does."""
    return (0, ASKED % (("cu130", "13.0") if ":cuda" in spec.image else ("cpu", "")), "")


@dataclass
class LayerEngine(FakeEngine):
    """A `FakeEngine` with layers. `whole_only`: its store is not by layer, it refuses an archive that lacks some."""

    whole_only: bool = False
    contexts: list[dict[str, bytes]] = field(default_factory=list)
    requests: list[BuildRequest] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    """Number of layers in each archive that came."""

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:
        self._called("build", request.tag)
        self.requests.append(request)
        with tarfile.open(fileobj=context) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
        self.contexts.append(files)
        yield Progress(text="Step 1/2 : FROM x")
        yield Progress(text="Looking in indexes: https://me:secret@index.example/simple")
        old = self.image(request.tag)
        layers = ("base", "torch", f"code-{hash(tuple(sorted(files.items())))}") if old is None else old.layers
        id = f"sha256:{self.node}-{len(self.requests)}"
        for image in [i for i in self.held.values() if request.tag in i.tags]:
            del self.held[image.id]
        self.held[id] = ImageFacts(
            id=id, tags=(request.tag,), layers=layers, labels=dict(request.labels), size_bytes=1000
        )

    def save(self, reference: str) -> Iterator[bytes]:
        self._called("save", reference)
        image = self.image(reference)
        assert image is not None
        spool = io.BytesIO()
        with tarfile.open(fileobj=spool, mode="w") as archive:
            for layer in image.layers:
                add(archive, f"{layer}/layer.tar", layer.encode() * 1000)
            config = {"layers": image.layers, "labels": dict(image.labels)}
            add(archive, f"{image.id}.json", json.dumps(config).encode())
            paths = [f"{layer}/layer.tar" for layer in image.layers]
            manifest = [{"Config": f"{image.id}.json", "RepoTags": [reference], "Layers": paths}]
            add(archive, "manifest.json", json.dumps(manifest).encode())
        yield spool.getvalue()

    def load(self, archive: Iterable[bytes]) -> None:
        self._called("load")
        raw = b"".join(archive)
        with tarfile.open(fileobj=io.BytesIO(unpacked(raw))) as opened:
            manifest = json.load(opened.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
            config = json.load(opened.extractfile(manifest["Config"]))  # type: ignore[arg-type]
            present = [path for path in manifest["Layers"] if path in opened.getnames()]
        self.loaded.append(len(present))
        held = {image.layers[: n + 1] for image in self.held.values() for n in range(len(image.layers))}
        for n, path in enumerate(manifest["Layers"]):
            known = not self.whole_only and tuple(config["layers"][: n + 1]) in held
            if path not in present and not known:
                raise EngineError(f"open {path}: no such file", node=self.node)
        id = manifest["Config"].removesuffix(".json")
        self.held[id] = ImageFacts(
            id=id,
            tags=tuple(manifest["RepoTags"]),
            layers=tuple(config["layers"]),
            labels=config["labels"],
            size_bytes=1000,
        )


def unpacked(archive: bytes) -> bytes:
    """An archive without its compression, of several frames or members maybe."""
    if archive[:2] == b"\x1f\x8b":
        return gzip.decompress(archive)
    if archive[:4] == b"\x28\xb5\x2f\xfd":
        with zstandard.ZstdDecompressor().stream_reader(archive, read_across_frames=True) as reader:
            return reader.read()
    return archive


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def engine(node: str, *, architecture: str = "x86_64", whole_only: bool = False) -> LayerEngine:
    """An engine that already has the base image."""
    made = LayerEngine(node, programs=answer, whole_only=whole_only)
    made.description = EngineFacts(kind="docker", version="28.2.2", id=node, architecture=architecture)
    made.held["sha256:base"] = ImageFacts(id="sha256:base", tags=("orch/base:bookworm",), layers=("base",))
    return made
