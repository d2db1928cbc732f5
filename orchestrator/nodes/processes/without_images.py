"""The half of an engine that deals with images, for one that has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, NoReturn

from orchestrator.nodes.interface import BuildRequest, Progress
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import ImageFacts


class WithoutImages:
    """Asked for an image, it has none; asked to make one, it says so."""

    def __init__(self, node: str) -> None:
        self._node = node

    def image(self, reference: str) -> ImageFacts | None:  # noqa: ARG002  # there are none
        return None

    def images(self) -> list[ImageFacts]:
        return []

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:  # noqa: ARG002  # see above
        self._no_images(f"build {request.tag}")

    def save(self, reference: str) -> Iterator[bytes]:
        self._no_images(f"save {reference}")

    def load(self, archive: Iterable[bytes]) -> None:  # noqa: ARG002  # see above
        self._no_images("load an image")

    def import_root(self, archive: Iterable[bytes], reference: str) -> None:  # noqa: ARG002  # see above
        self._no_images(f"import {reference}")

    def tag(self, image_id: str, reference: str) -> None:  # noqa: ARG002  # see above
        self._no_images(f"tag {reference}")

    def remove_image(self, reference: str) -> None:
        self._no_images(f"remove {reference}")

    def _no_images(self, what: str) -> NoReturn:
        raise EngineError(
            f"cannot {what}: there are no images, its containers are processes of this computer",
            node=self._node,
            hint="nothing to build here: orch launch runs the trainer of this Python",
        )
