"""The image of profile cpu, built once with the product's own code and kept: a later run finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from orchestrator.fleet.images.build import BuildOptions, build_image
from orchestrator.fleet.images.build_context import site_of, source_files
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import Recipe
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import ImageFacts
from tests.conftest import only_builder

PROJECT = "test"
"""The image of the tests does not take the place of a user's."""


@pytest.fixture(scope="session")
def local_node() -> Iterator[LocalNode]:
    node = LocalNode()
    try:
        node.engine.facts()
    except EngineError as error:
        pytest.skip(f"no Docker Engine: {error}")
    yield node
    node.close()


@pytest.fixture(scope="session")
def cpu_image(local_node: LocalNode) -> ImageFacts:
    recipe = Recipe(project=PROJECT, profile="cpu", files=source_files())
    options = BuildOptions(project=PROJECT, site=site_of(os.environ))
    with only_builder():
        return build_image(local_node, recipe, options, lambda name, progress: None)
