"""A project's own packages above the image: what pip changes, nothing else, and nothing private."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from orchestrator.fleet.images.build import BuildOptions, build_image
from orchestrator.fleet.images.build_context import Site, site_of, source_files
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import Recipe
from orchestrator.plan.packages import Additions
from orchestrator.specs.errors import EngineError
from orchestrator.specs.facts import ImageFacts
from tests.docker.test_cpu_image import ask

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

PROJECT = "test-packages"
DOCKERFILE = b'ARG BASE\nFROM ${BASE}\nCOPY note.txt /note.txt\nENTRYPOINT ["false"]\n'
ASK = """
import importlib.metadata, json, pathlib, torch, tqdm, maize
print(json.dumps({"maize": maize.NAME, "tqdm": tqdm.__version__, "torch": torch.__version__,
                  "distributions": [d.version for d in importlib.metadata.distributions(name="tqdm")],
                  "removed": pathlib.Path(tqdm.__file__).with_name("cli.py").exists(),
                  "note": pathlib.Path("/note.txt").read_text(), "site": pathlib.Path("/site").exists()}))
"""


def wheel(folder: Path, name: str, version: str, text: str, needs: str = "") -> None:
    """Write a wheel with one module."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(path, content)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Settings that reach no index: pip knows these wheels only."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "maize", "1.2", 'NAME = "maize"\n')
    wheel(folder, "tqdm", "99.0", '__version__ = "99.0"\n')
    wheel(folder, "old", "1.0", "", needs="torch<2")
    return site_of({"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}, wheels=folder)


@pytest.fixture(scope="module")
def recipe(local_node: LocalNode, cpu_image: ImageFacts) -> Iterator[Recipe]:
    """Recipe above the image of the other tests, which keeps its own tags."""
    below = Recipe(project=PROJECT, profile="cpu", files=source_files())
    local_node.engine.tag(cpu_image.id, below.content_tag)
    yield below
    for image in local_node.engine.images():
        for tag in image.tags:
            if tag.startswith(f"orch/{PROJECT}:"):
                local_node.engine.remove_image(tag)


def build(node: LocalNode, recipe: Recipe, site: Site) -> ImageFacts:
    return build_image(node, recipe, BuildOptions(project=PROJECT, site=site), lambda _node, _progress: None)


def test_packages_are_added_and_replaced_in_layers_of_their_own(
    local_node: LocalNode, cpu_image: ImageFacts, recipe: Recipe, site: Site
) -> None:
    added = Additions(requirements=("maize>=1", "tqdm==99.0"), dockerfile=DOCKERFILE, context={"note.txt": b"mine"})
    image = build(local_node, replace(recipe, additions=added), site)
    found = json.loads(ask(local_node, image, "python", "-c", ASK))
    assert found == {
        "maize": "maize",
        "tqdm": "99.0",
        "torch": "2.13.0+cpu",
        "distributions": ["99.0"],
        "removed": False,
        "note": "mine",
        "site": False,
    }
    assert image.layers[: len(cpu_image.layers)] == cpu_image.layers
    assert image.size_bytes - cpu_image.size_bytes < 1_000_000
    assert image.labels["orch.additions"] == added.digest


def test_a_package_that_needs_another_torch_fails_with_the_reason(
    local_node: LocalNode, recipe: Recipe, site: Site
) -> None:
    with pytest.raises(EngineError) as refused:
        build(local_node, replace(recipe, additions=Additions(requirements=("old",))), site)
    assert "torch<2" in str(refused.value)
    assert "torch is the image's own" in str(refused.value.hint)
