"""A launch that lacks its inventory, its image or packages: one list, one question, or the commands to paste."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.launching.first_steps import FirstSteps, steps_needed
from orchestrator.cli.launching.missing_modules import missing_modules
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.request import LaunchRequest
from tests import lan
from tests.unit.conftest import Orch

IMAGE = ImageFacts(id="sha256:1", labels={"orch.modules": "torch numpy PIL"})
LOCAL = NodeSpec(name="here", address="127.0.0.1", connection="local", engine="process")


def alone() -> lan.Lan:
    """This computer, with the image."""
    node = lan.lan("alpha", ends_with=None).nodes["alpha"]
    node.name = "here"
    return lan.Lan({"here": node})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script alone."""
    alone = tmp_path / "project"
    alone.mkdir()
    monkeypatch.chdir(alone)
    (alone / "train.py").write_text("import torch, sklearn.svm\n")
    return alone


def request(folder: Path, **changes: object) -> LaunchRequest:
    values = {"imports": {"torch": "train.py:1", "sklearn": "train.py:1"}, "workdir": folder, **changes}
    return lan.request(("alpha",), command=("python", "train.py"), **values)


MISSING = (Finding.of("image.missing", "alpha", case="built", image="", options=()),)


def test_the_image_is_a_step_with_the_folders_own_packages(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=None)}
    (folder / "requirements.txt").write_text("numpy\nscikit_learn>=1\n")
    steps = steps_needed(request(folder), facts, MISSING)
    assert list(steps.lines()) == [
        "build the CPU image with your requirements.txt, 1.4 GB, about 3 min, and copy it to alpha"
    ]
    assert list(steps_needed(request(folder, imports={}), facts, MISSING).lines()) == list(steps.lines())
    assert not steps_needed(request(folder, image="lab/mine:1"), facts, MISSING)


def test_an_image_without_a_package_that_the_folder_names_is_built_again(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=IMAGE)}
    assert not steps_needed(request(folder), facts, ())
    (finding,) = missing_modules(request(folder), facts)
    assert finding.message == "alpha: train.py:1 imports sklearn, and the image has no scikit-learn"
    assert finding.fix == "echo scikit-learn >> requirements.txt && orch build --requirements requirements.txt"
    file = folder / "requirements.txt"
    file.write_text("numpy\n")
    (finding,) = missing_modules(request(folder), facts)
    assert finding.fix == f"echo scikit-learn >> {file} && orch build --requirements {file}"
    file.write_text("scikit-learn\n")
    assert steps_needed(request(folder), facts, ()).requirements == file
    assert not list(missing_modules(request(folder, imports={"PIL": "train.py:1"}), facts))


def test_an_image_without_a_list_of_modules_misses_none(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=ImageFacts(id="sha256:1"))}
    assert not list(missing_modules(request(folder), facts))


def test_a_package_missing_in_the_next_image_is_named_before_it_is_built(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=None)}
    assert not steps_needed(request(folder), facts, MISSING)
    (finding,) = missing_modules(request(folder), facts)
    assert "imports sklearn" in finding.message


def test_processes_have_the_modules_of_this_python(folder: Path) -> None:
    asked = request(folder, nodes=(LOCAL,), imports={"pytest": "train.py:1", "no_such_module": "train.py:2"})
    (finding,) = missing_modules(asked, {"here": lan.facts("alpha", image=None)})
    assert "train.py:2 imports no_such_module, and orch's Python" in finding.message
    assert finding.fix.endswith(" -m pip install no-such-module")


def test_all_that_one_line_adds_is_one_finding(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=IMAGE)}
    imports = {
        "sklearn": "train.py:1",
        "yaml": "lib.py:2",
        "clip": "lib.py:3",
        "apex": "lib.py:4",
        "utils": "train.py:5",
    }
    plain, built, own = missing_modules(request(folder, imports=imports), facts)
    assert plain.message == (
        "alpha: train.py:1 imports sklearn, lib.py:2 yaml, lib.py:3 clip, and the image has no "
        "scikit-learn, pyyaml, CLIP (from https://github.com/openai/CLIP, not from PyPI)"
    )
    assert plain.fix == (
        r"printf '%s\n' scikit-learn pyyaml git+https://github.com/openai/CLIP >> requirements.txt"
        " && orch build --requirements requirements.txt"
    )
    assert "has no apex (from https://github.com/NVIDIA/apex, not from PyPI)" in built.message
    assert "pip install --no-build-isolation git+https://github.com/NVIDIA/apex" in built.fix
    assert "train.py:5 imports utils: neither the folder that is sent" in own.message
    assert "pip" not in own.fix
    file = folder / "requirements.txt"
    file.write_text("scikit-learn\ngit+https://github.com/openai/CLIP.git@main\n")
    plain, *_ = missing_modules(request(folder, imports=imports), facts)
    assert plain.fix == f"echo pyyaml >> {file} && orch build --requirements {file}"


def test_files_that_the_requirements_include_count(folder: Path) -> None:
    facts = {"alpha": lan.facts("alpha", image=IMAGE)}
    (folder / "requirements.txt").write_text("numpy\n-r base/all.txt\n")
    (folder / "base").mkdir()
    (folder / "base/all.txt").write_text("--requirement=../more.txt\n-r all.txt\n-r no_such.txt\n")
    (folder / "more.txt").write_text("scikit-learn\n")
    assert steps_needed(request(folder), facts, ()).requirements == folder / "requirements.txt"
    assert missing_modules(request(folder), facts).__next__().fix.startswith("orch build --requirements ")
    (folder / "more.txt").write_text("scikit-learn\n" + "#" * 2_000_000)
    assert not steps_needed(request(folder), facts, ())


def test_what_the_own_dockerfile_installs_counts(folder: Path) -> None:
    file = folder / "Dockerfile"
    file.write_text(
        "ARG BASE\nFROM ${BASE}\nUSER root\nRUN apt-get update && apt-get install -y python3-pip\n"
        "RUN --mount=type=cache,target=/root/.cache python3 -m pip install --no-cache-dir \\\n"
        "    'scikit-learn>=1' -r lists/more.txt && pip3 install git+https://github.com/openai/CLIP\n"
    )
    (folder / "lists").mkdir()
    (folder / "lists/more.txt").write_text("pyyaml\n")
    asked = request(folder, imports={"sklearn": "train.py:1", "yaml": "train.py:2", "clip": "train.py:3"})
    without = {"alpha": lan.facts("alpha", image=None)}
    assert list(missing_modules(asked, without))
    asked = replace(asked, dockerfile=str(file))
    assert not list(missing_modules(asked, without))
    (finding,) = missing_modules(asked, {"alpha": lan.facts("alpha", image=IMAGE)})
    assert finding.fix == "orch build"
    (finding,) = missing_modules(
        replace(asked, imports={"timm": "train.py:4"}), {"alpha": lan.facts("alpha", image=IMAGE)}
    )
    assert finding.fix.startswith("echo timm >> requirements.txt && ")


def test_without_a_terminal_the_steps_are_commands(orch: Orch, folder: Path) -> None:
    (folder / "train.py").write_text("import torch\n")
    ran = orch("launch", "--", "python", "train.py", on=alone(), says=None)
    assert (ran.code, ran.out) == (2, "")
    assert "this computer as the only node, in inventory.yaml" in ran.err
    assert "→ orch init --local --yes && orch launch --yes -- python train.py\n" in ran.err
    assert not (folder / "inventory.yaml").exists()


@pytest.mark.parametrize("words", [(), ("--nodes", "auto")], ids=" ".join)
def test_without_a_terminal_a_typo_is_named_before_the_consent(
    orch: Orch, folder: Path, words: tuple[str, ...]
) -> None:
    (folder / "inventory.yaml").write_text("nodes: {alpha: {address: 192.0.2.11}}\n")
    ran = orch("launch", *words, "--", "python", "trian.py", on=lan.lan("alpha"), says=None)
    assert ran.code == 3
    assert "no trian.py in " in ran.err
    assert "did you mean train.py?" in ran.err
    (folder / "train.py").write_text("import torch\n")
    ran = orch("launch", *words, "--", "python", "train.py", on=lan.lan("alpha"), says=None)
    assert (ran.code, "add --yes to agree" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("words", ["--yes", ""])
def test_one_question_and_the_run_starts(orch: Orch, folder: Path, words: str) -> None:
    (folder / "train.py").write_text("import torch\n")
    here = alone()
    ran = orch("launch", "-d", *words.split(), "--", "python", "train.py", on=here)
    assert ran.code == 0, ran.err
    assert ran.asked == (() if words else ("Do that, and start the run?",))
    assert "here" in (folder / "inventory.yaml").read_text()
    assert here.containers


def test_no_leaves_the_folder_as_it_was(orch: Orch, folder: Path) -> None:
    (folder / "train.py").write_text("import torch\n")
    here = alone()
    ran = orch("launch", "--", "python", "train.py", on=here, says=False)
    assert (ran.code, here.containers) == (130, {})
    assert [file.name for file in folder.iterdir()] == ["train.py"]


def test_a_dry_run_writes_nothing(orch: Orch, folder: Path) -> None:
    (folder / "train.py").write_text("import torch\n")
    ran = orch("launch", "--dry-run", "--", "python", "train.py", on=alone(), says=None)
    assert ran.code == 0, ran.err
    assert [file.name for file in folder.iterdir()] == ["train.py"]


def test_steps_name_their_cost() -> None:
    steps = FirstSteps(
        inventory=Path("inventory.yaml"), profiles=("cpu", "cuda"), requirements=Path("requirements.txt")
    )
    assert list(steps.lines()) == [
        "this computer as the only node, in inventory.yaml",
        "build the CPU image with your requirements.txt, 1.4 GB, about 3 min and the CUDA image with your "
        "requirements.txt, 5.6 GB, about 8 min",
    ]
    assert not FirstSteps()


def test_an_image_that_a_machine_has_is_only_copied() -> None:
    both = FirstSteps(profiles=("cpu", "cuda"), copied_to=("alpha", "beta"))
    assert list(replace(both, copies=frozenset({"cpu", "cuda"})).lines()) == [
        "copy the CPU image, 1.4 GB and the CUDA image, 5.6 GB, to alpha, beta"
    ]
    assert list(replace(both, copies=frozenset({"cpu"})).lines()) == [
        "build the CUDA image, 5.6 GB, about 8 min, and copy it and the CPU image, 1.4 GB, to alpha, beta"
    ]
    added = FirstSteps(profiles=("cpu",), copied_to=("alpha",), adds=True, requirements=Path("requirements.txt"))
    assert list(added.lines()) == [
        "add the packages of your requirements.txt to the image, about 1 min, and copy it to alpha"
    ]
    assert list(replace(added, copies=frozenset({"cpu"})).lines()) == [
        "copy the CPU image with your requirements.txt, 1.4 GB, to alpha"
    ]
