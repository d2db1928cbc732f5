"""An image for several nodes: its archive is sent on from node to node, and loaded by each node's own engine."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.fleet.images.distribute_image import HAS_ZSTD, distribute_image
from orchestrator.fleet.images.image_archive import COMPRESSING, SAVING
from orchestrator.nodes.interface import Completed, Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.facts import EngineFacts, ImageFacts
from tests.cases.images.engines import LayerEngine, add, unpacked

IMAGE = ImageFacts(id="sha256:0123", tags=("it:1",), layers=("base", "torch", "code"))
FOLDERS = dict.fromkeys(("alpha", "beta", "gamma"), "~/mine")
TORCH = os.urandom(9_000_000)


@dataclass
class LargeEngine(LayerEngine):
    """An engine whose layer `torch` has 9 MB that cannot be compressed."""

    parts: list[list[str]] = field(default_factory=list)

    def save(self, reference: str) -> Iterator[bytes]:
        self._called("save", reference)
        spool, paths = io.BytesIO(), [f"{layer}/layer.tar" for layer in IMAGE.layers]
        with tarfile.open(fileobj=spool, mode="w") as archive:
            for layer, path in zip(IMAGE.layers, paths, strict=True):
                add(archive, path, TORCH if layer == "torch" else layer.encode() * 1000)
            config = {"layers": IMAGE.layers, "labels": {}}
            add(archive, f"{IMAGE.id}.json", json.dumps(config).encode())
            manifest = [{"Config": f"{IMAGE.id}.json", "RepoTags": [reference], "Layers": paths}]
            add(archive, "manifest.json", json.dumps(manifest).encode())
        yield spool.getvalue()

    def load(self, archive: Iterable[bytes]) -> None:
        raw = b"".join(archive)
        with tarfile.open(fileobj=io.BytesIO(unpacked(raw))) as opened:
            self.parts.append([name for name in opened.getnames() if name.endswith("layer.tar")])
        super().load([raw])


class Machine(LocalNode):
    """A node with a home folder and a program `docker` of its own, which loads into the engine in memory."""

    def __init__(
        self, name: str, folder: Path, number: int, *layers: str, refuses: bool = False, version: str = "20.10.24",
        zstd: bool = False,
    ) -> None:  # fmt: skip
        self.home, self.memory, self.refuses, self.zstd = folder / name, LargeEngine(name), refuses, zstd
        self.loaded: list[str] = []
        """Files that were handed to the engine."""
        self.memory.description = EngineFacts(kind="docker", version=version, id=name, architecture="x86_64")
        self.memory.held["sha256:before"] = ImageFacts(id="sha256:before", layers=layers)
        super().__init__(name, f"127.0.0.{10 + number}", self.memory)
        (self.home / "bin").mkdir(parents=True)
        (self.home / "bin/docker").write_text(f'#!/bin/sh\ncat > "{self.home}/archive"; exit {int(refuses)}\n')
        (self.home / "bin/docker").chmod(0o755)

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        if argv == HAS_ZSTD:
            return Completed(node=self.name, argv=tuple(argv), exit_code=int(not self.zstd), stdout="", stderr="")
        done = super().run(self._own(argv), stdin=stdin, timeout_s=timeout_s)
        archive = self.home / "archive"
        if any("docker load" in word for word in argv):  # others run at the same time
            self.loaded = list(argv[5:])
            if not self.refuses:
                self.memory.load([archive.read_bytes()])
            archive.unlink()
        return done

    def stream(self, argv: Sequence[str], **how: object) -> Iterator[bytes]:
        return super().stream(self._own(argv), **how)  # type: ignore[arg-type]  # as it was called

    def _own(self, argv: Sequence[str]) -> list[str]:
        return ["env", f"HOME={self.home}", f"PATH={self.home}/bin:{os.environ['PATH']}", *argv]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LargeEngine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return LargeEngine("source", held={IMAGE.id: IMAGE})


def ignore(node: str, progress: Progress) -> None:
    return


def test_each_node_loads_its_missing_layers(tmp_path: Path, source: LargeEngine) -> None:
    nodes = [
        Machine("alpha", tmp_path, 1, "base", "torch"),
        Machine("beta", tmp_path, 2),
        Machine("gamma", tmp_path, 3, "base"),
    ]
    brought = distribute_image(IMAGE, ["it:1", "it:2"], source, nodes, FOLDERS, ignore)
    moved = {outcome.item.name: outcome.value().moved_bytes for outcome in brought}
    assert [node.memory.parts for node in nodes] == [
        [["code/layer.tar"]],
        [["base/layer.tar", "torch/layer.tar", "code/layer.tar"]],
        [["torch/layer.tar", "code/layer.tar"]],
    ]
    assert all({"it:1", "it:2"} <= set(node.engine.image(IMAGE.id).tags) for node in nodes)  # type: ignore[union-attr]
    assert moved["alpha"] < 10_000 < len(TORCH) < moved["gamma"] <= moved["beta"]
    assert source.calls.count(("save", "it:1")) == 1
    assert not [path for node in nodes for path in (node.home / "mine").rglob("*")]


@pytest.mark.parametrize(
    ("second", "packing"),
    [({"version": "28.2"}, "zst"), ({"zstd": True}, "zst"), ({}, "gz"), ({"version": "5:dev"}, "gz")],
)
def test_files_are_packed_with_zstd_where_each_node_can_unpack_it(
    tmp_path: Path, source: LargeEngine, second: dict[str, Any], packing: str
) -> None:
    nodes = [Machine("alpha", tmp_path, 1, version="23.0.1"), Machine("beta", tmp_path, 2, **second)]
    distribute_image(IMAGE, ["it:1"], source, nodes, FOLDERS, ignore)
    assert [node.loaded for node in nodes] == [[f"{layer}.{packing}" for layer in ("000", "001", "002", "-01")]] * 2
    assert all(node.engine.image(IMAGE.id) for node in nodes)


def test_an_engine_that_refuses_the_files_gets_the_image_from_the_source(tmp_path: Path, source: LargeEngine) -> None:
    nodes = [Machine("alpha", tmp_path, 1), Machine("beta", tmp_path, 2, refuses=True)]
    distribute_image(IMAGE, ["it:1"], source, nodes, FOLDERS, ignore)
    assert all(node.engine.image(IMAGE.id) for node in nodes)
    assert ("load",) in nodes[1].memory.calls
    assert not list((nodes[1].home / "mine").rglob("*"))


def test_one_node_gets_it_from_the_source(tmp_path: Path, source: LargeEngine) -> None:
    nodes = [Machine("alpha", tmp_path, 1), Machine("beta", tmp_path, 2)]
    nodes[1].memory.held[IMAGE.id] = IMAGE
    distribute_image(IMAGE, ["it:1"], source, nodes, FOLDERS, ignore)
    assert nodes[0].engine.image(IMAGE.id)
    assert not (nodes[0].home / "mine").exists()


def test_an_image_that_cannot_be_saved_is_the_error_of_each_node(tmp_path: Path, source: LargeEngine) -> None:
    source.held.clear()
    nodes = [Machine("alpha", tmp_path, 1), Machine("beta", tmp_path, 2)]
    source.save = lambda reference: iter([b"no archive"])  # type: ignore[method-assign]  # an engine that is damaged
    for outcome in distribute_image(IMAGE, ["it:1"], source, nodes, FOLDERS, ignore):
        assert "the engine's archive of it:1 cannot be read" in str(outcome.error)


def test_nodes_that_wait_see_bytes_of_the_save_and_of_the_compression(tmp_path: Path, source: LargeEngine) -> None:
    reports: list[tuple[str, Progress]] = []
    nodes = [Machine("alpha", tmp_path, 1), Machine("beta", tmp_path, 2)]
    image = replace(IMAGE, size_bytes=9_000_000)
    distribute_image(image, ["it:1"], source, nodes, FOLDERS, lambda *one: reports.append(one))
    for what in (SAVING, COMPRESSING):
        waits = [(name, one.done, one.total) for name, one in reports if one.text == what]
        assert {name for name, _, _ in waits} == {"alpha", "beta"}
        assert all(0 <= done < total for _, done, total in waits)
        assert max(done for _, done, _ in waits) > 8_000_000
