"""Packages that a project adds to the image: which files say them, and what is refused before anything is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.checks.images import image_outdated, package_missing
from orchestrator.fleet.images import build_context as reading
from orchestrator.fleet.images.build import BuildOptions, build_image
from orchestrator.fleet.images.build_context import read_additions
from orchestrator.nodes.fake import FakeEngine, FakeNode
from orchestrator.plan.image import DEFAULT_BASE, Recipe, needed_wheels
from orchestrator.plan.packages import Additions, check_dockerfile, command_to_add, debian_packages, requirements_of
from orchestrator.specs.errors import ConfigError, EngineError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.inventory import ImageSpec
from orchestrator.specs.inventory_files.inventory_file import read_inventory
from orchestrator.specs.labels import LABEL_ADDITIONS, LABEL_CONTENT, PACKAGE_LABELS
from tests import lan
from tests.unit.conftest import THREE, Orch

OURS = "ARG BASE\nFROM ${BASE}\n"


def added(folder: Path, **files: str) -> Additions:
    """Additions of files with this content, written into the folder."""
    names = {"requirements": "requirements.txt", "apt": "apt.txt", "dockerfile": "Dockerfile"}
    for key, text in files.items():
        (folder / names[key]).write_text(text)
    return read_additions(ImageSpec(**{key: str(folder / names[key]) for key in files}))


def problems(folder: Path, **files: str) -> str:
    with pytest.raises(ConfigError) as refused:
        added(folder, **files)
    return "\n".join([refused.value.message, *refused.value.problems])


def test_requirements_are_read_with_the_files_that_they_include(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "dev.txt").write_text("-r deeper.txt\neinops  # shapes\n")
    (tmp_path / "more" / "deeper.txt").write_text("-r dev.txt\ntimm>=1\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    found = added(
        tmp_path,
        requirements="# mine\n\n-r more/dev.txt\n--constraint=limits.txt\naccelerate \\\n    >=1.0\n--pre\ntorch\n",
    )
    assert found.requirements == ("timm>=1", "einops", "accelerate      >=1.0", "--pre", "torch")
    assert found.constraints == ("numpy<3",)
    assert found.names("accelerate")
    assert not found.names("numpy")


def test_what_no_image_can_take_is_refused_with_its_place(tmp_path: Path) -> None:
    message = problems(
        tmp_path,
        requirements="einops\n-e .\n./wheels/mine.whl\nmine @ file:///home/me/mine\n--find-links wheels\nwhat is this\n"
        "torch==2.3.1\ntorch>=2\n",
    )
    assert "6 lines" in message
    assert "requirements.txt:2: '-e .' is a path of this computer; code of yours is sent at launch" in message
    assert "requirements.txt:3" in message
    assert "requirements.txt:4" in message
    assert "requirements.txt:5: pip's option --find-links" in message
    assert "requirements.txt:6: 'what is this' is not a requirement" in message
    assert "requirements.txt:7: torch==2.3.1 excludes torch 2." in message
    assert "requirements.txt:8" not in message


TORCH = "2.13.0"
WHEEL = "https://x.org/flash_attn-2.8.0+cu126torch{torch}cxx11abiFALSE-cp3{python}-cp3{python}-linux_x86_64.whl"
LINES = [
    ("torch==2.13.0+cu126", ["torch==2.13.0"], "for the CPU or the CUDA of the image"),
    ("torch==2.13.0+cu126 ; python_version >= '3.10'", ["torch==2.13.0 ; python_version >= '3.10'"], "the image"),
    ("torch==2.1.0 ; sys_platform == 'darwin'", ["torch==2.1.0 ; sys_platform == 'darwin'"], ""),
    ("--extra-index-url https://download.pytorch.org/whl/cu126", [], "is left out"),
    ("-f https://data.pyg.org/whl/torch-2.13.0+cpu.html", ["-f https://data.pyg.org/whl/torch-2.13.0+cpu.html"], ""),
    ("--find-links=https://data.pyg.org/whl/torch-2.3.0+cu121.html", None, "for torch 2.3"),
    ("--trusted-host pypi.lan", ["--trusted-host pypi.lan"], ""),
    ("-e git+https://github.com/me/mine@v1#egg=mine", ["git+https://github.com/me/mine@v1#egg=mine"], "no editable"),
    ('mine --config-settings="--build-option=x"', ['mine --config-settings="--build-option=x"'], ""),
    ("numpy==2.1.0 --hash=sha256:aa --hash=sha256:bb", ["numpy==2.1.0 --hash=sha256:aa --hash=sha256:bb"], ""),
    ("nvidia-nccl-cu12==2.21.5", ["nvidia-nccl-cu12==2.21.5"], "useless in a CPU image"),
    ("triton==3.1.0", ["triton==3.1.0"], "useless in a CPU image"),
    (WHEEL.format(torch="2.13", python=12), None, "is for Python 3.12"),
    ("pytorch", ["pytorch"], "leave it out"),
    ("sklearn", ["sklearn"], "its package is scikit-learn"),
    ("opencv-python", ["opencv-python"], ""),
    ("git+ssh://git@github.com/me/mine", None, "needs an SSH key"),
    ("--index-url https://${TOKEN}@pypi.example/simple", None, "variables are not set"),
    ("--extra-index-url https://me:hunter2@pypi.example/simple", None, "holds a password or token"),
    ("https://x.org/mine.tar.gz?private_token=hunter2", None, "holds a password or token"),
    ("pywin32==306", None, "Windows only"),
]


@pytest.mark.parametrize(("line", "taken", "note"), LINES, ids=[line for line, _, _ in LINES])
def test_what_pip_accepts_is_accepted_and_what_will_not_do_it_is_noted(
    line: str, taken: list[str] | None, note: str
) -> None:
    found = requirements_of("requirements.txt", lambda _path: f"\ufeffnumpy\n{line}\n", TORCH)
    assert found.requirements[1:] == tuple([line] if taken is None else taken)
    assert bool(found.notes) == bool(note)
    assert note in "".join(found.notes)
    assert "hunter2" not in "".join(found.notes)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (WHEEL.format(torch="2.3", python=11), "compiled for torch 2.3"),
        (WHEEL.format(torch="2.13", python=10), "is for Python 3.10"),
        ("https://download.pytorch.org/whl/cu126/torch-2.13.0%2Bcu126-cp311-cp311-linux_x86_64.whl", "leave it out"),
        ("torch==2.12.0+cu126", "excludes torch 2.13.0"),
        ("flash-attn --no-build-isolation", "pip takes --no-build-isolation on its command line only"),
        ("-e .", "'-e .' is a path of this computer"),
        ("-f ./wheels", "orch build --wheels ./wheels"),
        ("mine --bar https://me:hunter2@x.org", "https://***@x.org"),
        ("mine at https://x.org/?api_token=hunter2", "https://x.org/?api_token=***"),
    ],
)
def test_what_cannot_work_is_refused_without_its_secrets(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        requirements_of("requirements.txt", lambda _path: line, TORCH)
    (message,) = refused.value.problems
    assert problem in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("requirements.txt", "# platform: linux-64\n_libgcc_mutex=0.1=main\nnumpy=1.26.4=py311h64a7726_0\n"),
        ("environment.yml", "name: mine\n"),
        ("requirements.txt", "name: mine\nchannels:\n- conda-forge\ndependencies:\n- numpy=1.26\n"),
        ("requirements.txt", "@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/linux-64/numpy.conda\n"),
    ],
)
def test_a_file_of_conda_is_named(path: str, text: str) -> None:
    with pytest.raises(ConfigError, match="no list for pip") as refused:
        requirements_of(path, lambda _path: text, TORCH)
    assert "is a file of conda" in refused.value.problems[0]
    assert "pip list" in str(refused.value.hint)


def test_a_list_that_powershell_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes("einops\r\nsklearn\r\n".encode("utf-16"))
    found = read_additions(ImageSpec(requirements=str(tmp_path / "requirements.txt")))
    assert found.requirements == ("einops", "sklearn")
    assert found.digest == replace(found, notes=()).digest


def test_a_requirement_of_a_repository_brings_git_to_the_build(tmp_path: Path) -> None:
    found = added(tmp_path, requirements="mine @ git+https://git.example/mine@v1\ngit+https://git.example/other\n")
    assert found.from_git
    assert not added(tmp_path, requirements="gitpython\n").from_git


def test_the_dependencies_of_a_project_are_constrained_by_its_lock(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(
        "".join(
            f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ {source} = "x" }}\n'
            for name, version, source in (
                ("Einops", "0.8.1", "registry"),
                ("torch", "2.3.1", "registry"),
                ("nvidia-cublas", "13", "registry"),
                ("mine", "1", "virtual"),
                ("forked", "1", "registry"),
                ("forked", "2", "registry"),
            )
        )
    )
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "mine"\ndependencies = ["torch>=2", "einops"]\n')
    found = read_additions(ImageSpec(requirements=str(project)))
    assert found.requirements == ("torch>=2", "einops")
    assert found.constraints == ("einops==0.8.1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[project]\nname = "mine"\ndynamic = ["dependencies"]\n', "no list `dependencies`"),
        ('[tool.poetry]\nname = "mine"\n', "no list `dependencies`"),
        ('[project]\ndependencies = ["torch<2"]\n', "cannot take its dependencies"),
        ("[project\n", "is not valid TOML"),
    ],
)
def test_a_project_without_a_list_that_can_be_installed_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_additions(ImageSpec(requirements=str(tmp_path / "pyproject.toml")))


def test_names_of_debian_packages_cannot_be_anything_else() -> None:
    assert debian_packages("libgl1 ffmpeg=7:5.1.6-0 # video\n\nlibgl1\n", "apt.txt") == ("libgl1", "ffmpeg=7:5.1.6-0")
    with pytest.raises(ConfigError) as refused:
        debian_packages("libgl1\n$(reboot) ok\n--allow-unauthenticated\n", "apt.txt")
    assert [line.partition(": ")[0] for line in refused.value.problems] == ["apt.txt:2", "apt.txt:3"]


@pytest.mark.parametrize(
    "text",
    [
        OURS,
        "# mine\narg BASE=x\nFROM --platform=linux/amd64 $BASE AS mine\nRUN true\n",
        "ARG BASE\nFROM debian AS tools\nFROM ${BASE} AS first\nCOPY --from=tools /a /a\nFROM first\n",
    ],
)
def test_a_dockerfile_may_be_long_if_it_ends_on_our_image(text: str) -> None:
    check_dockerfile(text, "Dockerfile")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("FROM pytorch/pytorch\n", "Dockerfile:1: its last stage is built from pytorch/pytorch"),
        ("FROM ${BASE}\n", "Dockerfile:1: "),
        ("ARG BASE\nFROM ${BASE} AS a\nFROM debian\nARG BASE\n", "Dockerfile:3: its last stage is built from debian"),
        ("RUN true\n", "Dockerfile: it has no FROM"),
    ],
)
def test_a_dockerfile_of_another_image_is_refused(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_dockerfile(text, "Dockerfile")
    assert refused.value.message.startswith(place)
    assert "FROM ${BASE}" in str(refused.value.hint)


def test_the_folder_of_a_dockerfile_is_read_without_what_it_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_bytes(b"x" * 100)
    (tmp_path / "setup.sh").write_text("true\n")
    (tmp_path / ".dockerignore").write_text("# ours\ndata\n")
    assert set(added(tmp_path, dockerfile=OURS).context) == {".dockerignore", "Dockerfile", "setup.sh"}
    (tmp_path / ".dockerignore").write_text("")
    monkeypatch.setattr(reading, "CONTEXT_LIMIT", 99)
    with pytest.raises(ConfigError) as refused:
        read_additions(ImageSpec(dockerfile=str(tmp_path / "Dockerfile")))
    assert "echo 'data' >>" in str(refused.value.hint)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt: No such file"):
        read_additions(ImageSpec(apt=str(tmp_path / "none.txt")))


def test_every_part_decides_about_the_content() -> None:
    whole = Additions(requirements=("a",), constraints=("b",), apt=("c",), dockerfile=b"d", context={"e": b"f"})
    others = [
        replace(whole, requirements=("a", "b")),
        replace(whole, constraints=()),
        replace(whole, apt=("cc",)),
        replace(whole, dockerfile=b"dd"),
        replace(whole, context={"e": b"ff"}),
        replace(whole, context={"ee": b"f"}),
    ]
    assert len({one.digest for one in (whole, *others)}) == 7
    assert Additions(constraints=("b",)).digest == ""
    plain = Recipe(project="maize", profile="cpu", files={"images/Dockerfile": b"FROM x"})
    assert replace(plain, additions=whole).content != plain.content == replace(plain, additions=Additions()).content


def recipe(additions: Additions) -> Recipe:
    return Recipe(project="maize", profile="cpu", files={"images/torch.txt": b"numpy==2.4.6\n"}, additions=additions)


def builder(below: Recipe) -> tuple[FakeNode, FakeEngine]:
    """A node whose engine has the base, the image `below`, and what every image answers."""
    versions = '{"python": "3.11.2", "torch": "2.13.0+cpu", "cuda": "", "onednn": true}'
    node = FakeNode("alpha")
    engine = FakeEngine("alpha", programs=lambda _spec: (0, versions, ""))
    node.engine = engine
    for image in (
        ImageFacts(id="sha256:base", tags=(DEFAULT_BASE,)),
        ImageFacts(id="sha256:below", tags=(below.content_tag,), labels={LABEL_CONTENT: below.content}),
    ):
        engine.held[image.id] = image
    return node, engine


def test_packages_are_built_above_our_image_and_the_dockerfile_above_them() -> None:
    wanted = recipe(Additions(requirements=("einops",), apt=("libgl1",), dockerfile=OURS.encode()))
    node, engine = builder(replace(wanted, additions=Additions()))
    image = build_image(node, wanted, BuildOptions(project="maize"), lambda _node, _progress: None)
    assert [call for call in engine.calls if call[0] == "build"] == [("build", wanted.content_tag)] * 3
    assert image.labels[LABEL_ADDITIONS] == wanted.additions.digest
    tagged = engine.image(wanted.tag)
    assert tagged
    assert tagged.id == image.id


def test_a_build_that_fails_leaves_the_image_before_in_place() -> None:
    wanted = recipe(Additions(requirements=("no-such-package",)))
    node, engine = builder(replace(wanted, additions=Additions()))
    engine.held["sha256:before"] = before = ImageFacts(id="sha256:before", tags=(wanted.tag,))
    engine.failures["build"] = EngineError("no matching distribution for no-such-package")
    with pytest.raises(EngineError, match="no-such-package"):
        build_image(node, wanted, BuildOptions(project="maize"), lambda _node, _progress: None)
    assert engine.image(wanted.tag) == before


def test_wheels_of_a_folder_are_sent_for_packages_missing_in_the_image() -> None:
    names = [f"{name}-py3-none-any.whl" for name in ("einops-0.8.1", "numpy-2.4.6")]
    wanted = recipe(Additions(requirements=("einops",)))
    assert needed_wheels(names, wanted, "x86_64") == names[:1]
    assert needed_wheels(names, replace(wanted, additions=Additions()), "x86_64") == names[1:]


def test_the_inventory_names_the_files_relative_to_itself(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("image:\n  requirements: mine/requirements.txt\nnodes:\n  alpha: {address: 192.168.1.50}\n")
    assert read_inventory(inventory).image == ImageSpec(requirements=str(tmp_path / "mine" / "requirements.txt"))


def test_a_key_of_the_image_that_is_not_known_is_named_with_its_line(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("image:\n  requirement: a.txt\nnodes:\n  alpha: {address: 192.168.1.50}\n")
    with pytest.raises(ConfigError) as refused:
        read_inventory(inventory)
    assert refused.value.problems == (
        f"{inventory}:2: unknown key 'requirement' in image (did you mean 'requirements'?)",
    )


def test_an_image_with_other_packages_is_found_before_a_launch() -> None:
    fleet = [lan.facts("alpha", image=ImageFacts(id="1", labels={LABEL_ADDITIONS: "now"})), lan.facts("beta")]
    (finding,) = image_outdated(fleet, "now")
    assert (finding.id, finding.node) == ("image.outdated", "beta")
    assert not list(image_outdated(fleet[:1], "now"))


GNN = "torch-geometric"


def test_a_package_that_the_workload_needs_is_asked_of_every_image() -> None:
    label = PACKAGE_LABELS[GNN]
    fleet = [
        lan.facts("alpha", image=ImageFacts(id="1", labels={label: "2.8.1"})),
        lan.facts("beta", image=ImageFacts(id="2", labels={label: ""})),
        lan.facts("gamma"),  # an image without the label: not known
    ]
    (finding,) = package_missing(fleet, {GNN: "the line"})
    assert (finding.id, finding.node, finding.fix) == ("image.package_missing", "beta", "the line")
    assert not list(package_missing(fleet, {}))


@pytest.mark.parametrize(
    ("requirements", "line"),
    [
        (None, "echo torch-geometric >> requirements.txt && orch build --requirements requirements.txt"),
        ("/my files/r.txt", "echo torch-geometric >> '/my files/r.txt' && orch build"),
        ("/a/pyproject.toml", "orch build   # after adding 'torch-geometric' to `dependencies` in /a/pyproject.toml"),
    ],
)
def test_the_line_that_adds_a_package(requirements: str | None, line: str) -> None:
    assert command_to_add([GNN], requirements) == line


def test_a_launch_of_graphs_is_refused_where_the_image_has_none(orch: Orch) -> None:
    bare = replace(lan.IMAGE, labels={**lan.IMAGE.labels, PACKAGE_LABELS[GNN]: ""})
    words = ("launch", "-y", "--mount", "/srv/traces:/workspace/Data", "--")
    on = lan.lan(*THREE, held={bare.id: bare})
    ran = orch(*words, "traces-gnn", on=on)
    assert ran.code == 4
    assert f"→ {command_to_add([GNN], None)}" in ran.err
    assert not on.containers
    assert "torch-geometric" not in orch(*words, "traces-lstm", on=lan.lan(*THREE, held={bare.id: bare})).err
