"""Name and content of an image: decided before anything is built."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orchestrator.fleet.images.build_context import source_files
from orchestrator.plan.image import (
    DEFAULT_BASE,
    ImageVersions,
    Recipe,
    labels,
    needed_wheels,
    pip_conf,
    proxies,
)
from orchestrator.specs.secret_forms import hide_secrets

FILES = {
    "images/Dockerfile": b"FROM x",
    "images/torch.txt": b"torch==2.13.0\ntorchvision==0.28.0\nnumpy==2.4.6\n",
    "trainer/a.py": b"1",
}
RECIPE = Recipe(project="maize", profile="cpu", files=FILES, git_commit="c0ffee", version="1.2")


def test_tags_name_the_project_the_profile_and_the_content() -> None:
    assert RECIPE.tag == "orch/maize:cpu"
    assert RECIPE.content_tag == f"orch/maize:cpu-{RECIPE.content[:12]}"
    assert re.fullmatch(r"[0-9a-f]{64}", RECIPE.content)


@pytest.mark.parametrize(
    "other",
    [
        replace(RECIPE, profile="cuda"),
        replace(RECIPE, base="debian:trixie"),
        replace(RECIPE, files={**FILES, "trainer/a.py": b"2"}),
        replace(RECIPE, files={**FILES, "trainer/b.py": b""}),
        replace(RECIPE, files={**FILES, "trainer/a.p": b"y1"}),
    ],
)
def test_another_content_has_another_hash(other: Recipe) -> None:
    assert other.content != RECIPE.content


def test_the_hash_is_the_same_whoever_builds_it_and_when() -> None:
    turned = dict(reversed(FILES.items()))
    assert replace(RECIPE, files=turned, git_commit="other", version="9", project="rice").content == RECIPE.content


def test_labels_say_what_was_found_inside() -> None:
    found = ImageVersions(
        python="3.11.2", torch="2.13.0+cu130", cuda="13.0", onednn=True, packages={"torch-geometric": "2.8.1"}
    )
    written = labels(RECIPE, found, "2026-01-01T00:00:00+00:00")
    assert (written["orch.torch_geometric"], written["orch.torchvision"]) == ("2.8.1", "")
    assert labels(RECIPE, replace(found, packages={}), "")["orch.torch_geometric"] == ""
    assert written["orch.torch"] == "2.13.0+cu130"
    assert written["orch.cuda"] == "13.0"
    assert written["orch.content"] == RECIPE.content
    assert written["org.opencontainers.image.revision"] == "c0ffee"
    assert written["orch.project"] == "maize"


def test_only_the_wheels_that_this_image_installs_are_sent() -> None:
    names = [
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "numpy-2.4.5-cp311-cp311-manylinux_2_28_x86_64.whl",
        "scipy-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torchvision-0.28.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torchvision-0.28.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "notes.txt",
        "numpy.whl",
    ]
    assert needed_wheels(names, RECIPE, "x86_64") == [names[4], names[0], names[8]]
    assert needed_wheels(names, replace(RECIPE, profile="cuda"), "x86_64") == [names[4], names[3], names[7]]
    assert needed_wheels(names, RECIPE, "aarch64") == [names[2]]
    assert needed_wheels(names, replace(RECIPE, base="mine"), "x86_64") == [names[4], names[0], names[1], names[8]]


def test_pip_settings_are_handed_through_without_paths_of_this_computer() -> None:
    text = pip_conf(
        {"PIP_INDEX_URL": "https://u:p@index.example/simple", "PIP_EXTRA_INDEX_URL": "file:///opt https://b"}
    )
    assert text == "[global]\nindex-url = https://u:p@index.example/simple\nextra-index-url = https://b\n"
    assert pip_conf({"PIP_CERT": "/etc/ca.crt", "HOME": "/root"}) == ""


def test_proxies_are_known_in_both_spellings() -> None:
    found = proxies({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "10.0.0.0/8"})
    assert found["https_proxy"] == found["HTTPS_PROXY"] == "http://proxy:3128"
    assert found["NO_PROXY"] == "10.0.0.0/8"
    assert "http_proxy" not in found


def test_credentials_never_reach_a_log() -> None:
    assert hide_secrets("Looking in https://me:secret@a.example/s, http://b.example") == (
        "Looking in https://***@a.example/s, http://b.example"
    )


def test_this_package_brings_its_dockerfile_pins_and_trainer() -> None:
    recipe = Recipe(project="orch", profile="cpu", files=source_files())
    ours = {"trainer/__main__.py", "contract/log_lines.py", "orch_hooks/__init__.py"}
    assert {"images/Dockerfile", "images/site/pip.sh", *ours} <= set(recipe.files)
    assert not [path for path in recipe.files if "__pycache__" in path]
    assert recipe.pins["torch"] == "2.13.0"
    assert {"tensorboard", "tokenizers", "psutil", "nvidia-ml-py", "numpy"} <= set(recipe.pins)
    assert recipe.base == DEFAULT_BASE
