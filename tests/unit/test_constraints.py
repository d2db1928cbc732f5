"""One set of versions: what the host installs, what the image holds, what pyproject.toml asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def requirements(path: str) -> list[Requirement]:
    lines = (ROOT / path).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(path: str, python: str) -> dict[str, str]:
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    found: dict[str, str] = {}
    for requirement in requirements(path):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert re.fullmatch(r"==[^*]+", str(requirement.specifier)), f"{requirement} is not exact"
            assert requirement.url is None
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} twice for {python}"
            found[name] = str(requirement.specifier).removeprefix("==")
    return found


def test_the_image_has_the_versions_of_the_host() -> None:
    host = pins("constraints.txt", "3.11")
    image = pins("images/torch.txt", "3.11") | pins("images/requirements.txt", "3.11")
    assert image == {name: host[name] for name in image}


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_of_the_project_is_pinned(python: str) -> None:
    pinned = pins("constraints.txt", python)
    text = (ROOT / "pyproject.toml").read_text()
    blocks = re.findall(r"^(?:dependencies|trainer|dashboard|gnn|dev) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    asked = [Requirement(line) for block in blocks for line in re.findall(r'(?:^\s*)"([^"]+)"', block, re.MULTILINE)]
    assert {"torch-geometric", "torch", "ruff", "starlette"} <= {one.name for one in asked}
    assert len(asked) > 20
    for requirement in asked:
        assert canonicalize_name(requirement.name) in pinned
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), f"{requirement} on {python}"


def test_the_image_holds_what_the_trainer_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (block,) = re.findall(r"^trainer = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    asked = {Requirement(line).name for line in re.findall(r'^\s+"([^"]+)"', block, re.MULTILINE)}
    assert asked <= set(pins("images/torch.txt", "3.11")) | set(pins("images/requirements.txt", "3.11"))
