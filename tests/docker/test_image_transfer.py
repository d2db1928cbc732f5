"""Engines take an archive that lacks the layers they hold, and a changed trainer moves kilobytes."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from orchestrator.fleet.images.build_context import archive_of
from orchestrator.fleet.images.image_archive import ImageArchive, layers_in_common
from orchestrator.nodes.interface import BuildRequest
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import DEFAULT_BASE
from orchestrator.specs.facts import ImageFacts

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

TAG = "orch/test-transfer:{}"


@pytest.fixture
def two_images(local_node: LocalNode, cpu_image: ImageFacts) -> tuple[ImageFacts, ImageFacts]:
    """Images on the same base; the second is one layer more than the first."""
    return _built(local_node, "one", b"1"), _built(local_node, "two", b"2" * 4096)


def test_a_layer_that_is_held_is_not_needed(
    local_node: LocalNode, two_images: tuple[ImageFacts, ImageFacts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = two_images
    held = layers_in_common(two.layers, [one.layers])
    assert held == len(two.layers) - 1
    try:
        with ImageArchive(local_node.engine, TAG.format("two")) as archive:
            local_node.engine.remove_image(TAG.format("two"))
            assert local_node.engine.image(two.id) is None
            delta = b"".join(archive.chunks(held, "gz"))
        local_node.engine.load([delta])
        assert local_node.engine.image(two.id) == two
        assert len(delta) < 20_000
        assert two.size_bytes > 20_000_000
    finally:
        for name in ("one", "two"):
            local_node.engine.remove_image(TAG.format(name))


def test_the_manifest_of_a_real_engine_is_understood(
    local_node: LocalNode, two_images: tuple[ImageFacts, ImageFacts]
) -> None:
    try:
        saved = BytesIO(b"".join(local_node.engine.save(TAG.format("one"))))
        with tarfile.open(fileobj=saved) as archive:
            manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert len(manifest[0]["Layers"]) == len(two_images[0].layers)
    finally:
        for name in ("one", "two"):
            local_node.engine.remove_image(TAG.format(name))


def _built(node: LocalNode, name: str, content: bytes) -> ImageFacts:
    dockerfile = f"FROM {DEFAULT_BASE}\nCOPY content /content-of-a-test\n".encode()
    request = BuildRequest(tag=TAG.format(name), dockerfile="Dockerfile", args={}, labels={})
    for _ in node.engine.build(request, archive_of({"Dockerfile": dockerfile, "content": content})):
        pass
    image = node.engine.image(TAG.format(name))
    assert image is not None
    return image
