"""A saved image, cut to what a node lacks."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.fleet.images.image_archive import ImageArchive, Packing, layers_in_common
from orchestrator.nodes.fake import FakeEngine
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import ImageFacts
from tests.cases.images.engines import LayerEngine, unpacked


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def engine() -> LayerEngine:
    image = ImageFacts(id="sha256:x", tags=("x",), layers=("base", "torch", "code"))
    return LayerEngine("alpha", held={"sha256:x": image})


@pytest.mark.parametrize(
    ("held", "common"),
    [
        ([], 0),
        ([("base",)], 1),
        ([("base", "torch", "older"), ("base",)], 2),
        ([("torch", "code")], 0),
        ([("base", "torch", "code", "more")], 3),
    ],
)
def test_layers_count_from_the_base_upwards(held: list[tuple[str, ...]], common: int) -> None:
    assert layers_in_common(("base", "torch", "code"), held) == common


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_layers_that_a_node_holds_are_left_out(engine: LayerEngine, held: int, packing: Packing) -> None:
    with ImageArchive(engine, "x") as archive:
        files = _unpacked(archive.chunks(held, packing))
        assert abs(sum(map(len, archive.chunks(held, packing))) - archive.size(held, packing)) < 64
    assert [name for name in files if name.endswith("layer.tar")] == [
        f"{layer}/layer.tar" for layer in ("base", "torch", "code")[held:]
    ]
    assert json.loads(files["manifest.json"])[0]["Layers"] == ["base/layer.tar", "torch/layer.tar", "code/layer.tar"]
    assert all(files[f"{layer}/layer.tar"] == layer.encode() * 1000 for layer in ("base", "torch", "code")[held:])


def test_whole_is_what_the_engine_saved(engine: LayerEngine) -> None:
    with ImageArchive(engine, "x") as archive:
        assert b"".join(archive.whole()) == b"".join(engine.save("x"))


def test_an_archive_that_is_none_is_an_error_of_the_engine() -> None:
    engine = FakeEngine("alpha", held={"sha256:x": ImageFacts(id="sha256:x", tags=("x",))})
    with pytest.raises(EngineError, match="archive of x cannot be read"):
        ImageArchive(engine, "x")


def _unpacked(chunks: Iterable[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(unpacked(b"".join(chunks)))) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
