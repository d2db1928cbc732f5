"""Imports of a user's script, from its text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.fleet.planning.imports import _GONE, Imports, imports_of


def found(folder: Path, files: dict[str, str], *words: str) -> Imports:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return imports_of(folder, words or ("train.py",))


@pytest.mark.parametrize(
    ("text", "needed", "possible"),
    [
        ("import os, torch\nimport sklearn.svm as svm\nfrom PIL import Image", "torch sklearn PIL", ""),
        ("try:\n    import a\nexcept ImportError:\n    a = None", "", ""),
        ("try:\n    import a\nexcept:\n    import b", "", ""),
        ("try:\n    import a\nexcept (ImportError, OSError):\n    raise SystemExit('pip install a')", "", "a"),
        ("try:\n    import a\nexcept ImportError:\n    import sys\n    sys.exit(1)", "", "a"),
        ("try:\n    import a\nexcept ValueError:\n    pass", "a", ""),
        ("try:\n    import a\nfinally:\n    import b", "a b", ""),
        ("from contextlib import suppress\nwith suppress(ImportError):\n    import a", "", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b", "", "b"),
        ("def main():\n    import a\nif __name__ == '__main__':\n    import b", "b", "a"),
        ("import sys\nif sys.argv[1:]:\n    import wandb", "", "wandb"),
        ("def f():\n    import a\nimport a", "a", ""),
        ("class Model:\n    import a", "a", ""),
        ("import distutils, imp", "", ""),
        ("import a\nthis is no Python", "", ""),
    ],
)
def test_what_a_script_imports(tmp_path: Path, text: str, needed: str, possible: str) -> None:
    imports = found(tmp_path, {"train.py": text})
    assert (" ".join(imports.needed), " ".join(imports.possible)) == (needed, possible)


def test_the_standard_library_is_that_of_the_image() -> None:
    """Python 3.12 and 3.13, which may run orch, have removed some of its modules (PEP 594, 632)."""
    removed = (
        "aifc audioop cgi cgitb chunk crypt imghdr lib2to3 mailcap msilib nis nntplib ossaudiodev pipes sndhdr spwd"
    )
    assert {*removed.split(), "sunau", "telnetlib", "uu", "xdrlib", "imp", "distutils"} <= _GONE
    if sys.version_info[:2] == (3, 11):
        assert sys.stdlib_module_names >= _GONE


def test_modules_of_the_folder_are_read_and_not_named(tmp_path: Path) -> None:
    files = {
        "train.py": "import yaml, model.net, helpers\nfrom lib import deep\nfrom model import heads\n",
        "yaml.py": "import a",  # a module of the folder comes before the package of its name
        "model/__init__.py": "from . import parts\nif __name__ == '__main__':\n    import never",
        "model/net.py": "from .parts import Part\nimport b",
        "model/parts.py": "import c",
        "model/heads.py": "import d",
        "lib/deep.py": "import e",
        "src/helpers.py": "",  # elsewhere in the folder: the script may extend its path
    }
    imports = found(tmp_path, files)
    assert sorted(imports.needed) == ["a", "b", "c", "d", "e"]
    assert imports.needed["b"] == "model/net.py:2"


def test_a_script_in_a_folder_and_a_module(tmp_path: Path) -> None:
    files = {"pkg/train.py": "import near, far", "pkg/near.py": "import a", "far.py": "import b", "pkg/__init__.py": ""}
    assert sorted(found(tmp_path, files, "pkg/train.py").needed) == ["a", "b"]
    assert sorted(found(tmp_path, files, "-m", "pkg.train").needed) == ["b"]
    assert found(tmp_path, files, "-m", "of.the.image") == Imports()
    assert found(tmp_path, files, "/opt/elsewhere.py") == Imports()


def test_a_module_that_only_a_function_imports_is_possible_with_all_that_it_imports(tmp_path: Path) -> None:
    files = {"train.py": "def f():\n    import plots\n", "plots.py": "import matplotlib"}
    assert found(tmp_path, files) == Imports(possible={"matplotlib": "plots.py:1"})


@pytest.mark.parametrize(
    "line",
    [
        "sys.path.insert(0, '/lib')",
        "sys.path.append(os.environ['LIB'])",
        "def add(path):\n    sys.path += [path]",
        "os.system('pip install mylib')",
        "subprocess.check_call([sys.executable, '-m', 'pip', 'install', '-q', 'mylib>=1'])",
        "command = 'pip install -r other.txt'\nos.system(command)",
        "def install(name):\n    subprocess.run(['pip', 'install', name])",
    ],
)
def test_no_import_of_a_script_that_brings_packages_is_certain(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(f"import os, sys\n{line}\nimport mylib\n")
    found = imports_of(tmp_path, ("train.py",))
    assert (set(found.needed), set(found.possible)) == (set(), {"mylib"})


@pytest.mark.parametrize(
    "line",
    [
        "ROOT = Path(__file__).resolve().parents[0]\nif str(ROOT) not in sys.path:\n    sys.path.append(str(ROOT))",
        "sys.path.append(os.path.abspath(os.path.join('..', 'lib')))",
        "sys.path.insert(0, os.getcwd())",
        "print('to draw: pip install matplotlib, and extend sys.path')",
        "'Usage: pip install mylib'",
        "os.system('pip install another')",
    ],
)
def test_a_path_in_the_folder_a_text_or_another_package_leaves_an_import_certain(tmp_path: Path, line: str) -> None:
    files = {"train.py": f"import os, sys\n{line}\nimport mylib, deep\n", "third/party/a/b/deep.py": ""}
    assert found(tmp_path, files) == Imports(needed={"mylib": f"train.py:{3 + line.count(chr(10))}"})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ["import torch\nx = " + "1 or " * 3000 + "1\n", "import torch\nx = '\\d'\n"])
def test_a_text_that_is_too_deep_or_outdated_ends_no_launch(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text("if x:\n    pass\n" + "elif x:\n    import numpy\n" * 600 + text)
    assert set(imports_of(tmp_path, ("python", "train.py")).needed) <= {"torch", "numpy"}


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    files = {"train.py": "import one", "one.py": "import two, a", "two.py": "import one, train, b"}
    assert sorted(found(tmp_path, files).needed) == ["a", "b"]
