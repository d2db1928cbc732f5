"""Packages by module: what pip is to install for an import."""

from __future__ import annotations

import pytest

from contract.import_names import package_of


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("sklearn.linear_model", "scikit-learn"),
        ("cv2", "opencv-python-headless"),
        ("PIL.Image", "pillow"),
        ("yaml", "pyyaml"),
        ("bs4", "beautifulsoup4"),
        ("google.protobuf.message", "protobuf"),
        ("flash_attn", "flash-attn"),
        ("boto3", "boto3"),
        ("apex.parallel", "git+https://github.com/NVIDIA/apex"),  # on PyPI: a toolkit for Pyramid
        ("clip", "git+https://github.com/openai/CLIP"),  # on PyPI: a clipboard
        ("muon", "git+https://github.com/KellerJordan/Muon"),  # on PyPI: omics
        ("whisper", "openai-whisper"),  # on PyPI: a database of time series
        ("tree", "dm-tree"),
        ("megatron.core.models", "megatron-core"),
        ("esm.pretrained", "fair-esm"),
        ("esm.models.esm3", "esm"),
    ],
)
def test_the_package_of_a_module(module: str, package: str) -> None:
    assert package_of(module) == package


def test_a_package_that_the_project_names_is_preferred() -> None:
    assert package_of("cv2", ["numpy", "OpenCV_Python"]) == "OpenCV_Python"
    assert package_of("cv2", ["numpy"]) == "opencv-python-headless"
    assert package_of("apex", ["apex"]) == "apex"
