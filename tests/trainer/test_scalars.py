"""Values that people write, read as YAML 1.2 wherever the trainer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEEDS_TORCH
from trainer.cli import main
from trainer.scalars import load, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("3E4", 3e4), ("-.5", -0.5), ("2.", 2.0), ("12", 12), ("-7", -7), ("0x1f", 31), ("0o17", 15),
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("y", "y"), ("true", True), ("False", False), ("22:22", "22:22"),
        ("007", 7), ("1_000", "1_000"), ("2026-11-22", "2026-11-22"), ("null", None), ("~", None), ("", None),
        ("[1e-3, no]", [0.001, "no"]), (".inf", float("inf")), ("a: b: c", "a: b: c"), ("resnet18", "resnet18"),
    ],
)  # fmt: skip
def test_as_yaml_1_2(text: str, value: Any) -> None:
    found = scalar(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "wanted", "value"),
    [
        ("1", "float", 1.0),
        ("1", "str", "1"),
        ("3", "int", 3),
        ("true", "bool", True),
        ("1e-3", "<class 'float'>", 1e-3),
    ],
)
def test_the_annotation_goes_first(text: str, wanted: str, value: Any) -> None:
    assert (type(scalar(text, wanted)), scalar(text, wanted)) == (type(value), value)


@pytest.mark.parametrize(("text", "wanted"), [("no", "bool"), ("x", "int"), ("22:22", "float")])
def test_what_is_of_another_type_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        scalar(text, wanted)


def test_a_document() -> None:
    assert load("lr: 1e-3\nname: no\nat: 22:22\n") == {"lr": 0.001, "name": "no", "at": "22:22"}


@NEEDS_TORCH
def test_a_modules_function_gets_what_was_written(call, tmp_path: Path) -> None:
    file = tmp_path / "told_settings.py"
    file.write_text(
        "def build(lr, x, at, width: int = 1, name: str = ''):\n"
        "    raise SystemExit(repr((lr, x, at, width, name)))\n"
    )  # fmt: skip
    reported = ("--set", "lr=1e-3", "--set", "x=no", "--set", "at=22:22", "--set", "width=8", "--set", "name=12")
    with pytest.raises(SystemExit, match=r"\(0.001, 'no', '22:22', 8, '12'\)"):
        main(["custom", "--module", f"{file}:build", "--run-dir", str(tmp_path), *reported])
    wrong = call("custom", "--module", f"{file}:build", "--run-dir", str(tmp_path), "--set", "width=wide")
    assert wrong.code == 2
    assert "--set width=wide" in wrong.err
