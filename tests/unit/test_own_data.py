"""`--data` for a script of the user's: names, places, and what is refused before anything is copied."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.fleet.planning.request import build_request
from orchestrator.fleet.runs.code_files import code_digest
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.fleet.runs.launch import _LINK, _PREPARE
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.data import DataFolder, is_possible_place, read_data_options
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.request import LaunchRequest
from tests import lan

SCRIPT = ("python", "train.py")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of code with data in it, beside it and elsewhere; the current folder."""
    for folder in ("proj/data", "mydata", "far/set"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.csv").write_text(folder)
    (tmp_path / "proj/train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path / "proj")
    return tmp_path / "proj"


def asked(
    *data: str, earlier: Plan | None = None, engine: str = "docker", notes: list[object] | None = None, **more: object
) -> LaunchRequest:
    inventory = Inventory(nodes=tuple(lan.spec(name, engine=engine) for name in lan.NAMES[:2]))
    options = LaunchOptions(data=read_data_options(data), command=SCRIPT, **more)  # type: ignore[arg-type]  # any field
    return build_request(inventory, options, earlier, {}, (notes if notes is not None else []).append)


def planned(request: LaunchRequest) -> Plan:
    return plan_launch(request, {node.name: lan.facts(node.name) for node in request.nodes}, lan.IDENTITY)


# ── Names and places ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["../mydata"], [("mydata", "../mydata")]),
        (["train=/a/b", "val=../c"], [("train", "/a/b"), ("val", "../c")]),
        (["./my data.v2"], [("my_data_v2", "./my data.v2")]),
        (["./a=b"], [("a_b", "./a=b")]),
        (["../.."], [("data", "../..")]),
    ],
)
def test_names_are_typed_or_those_of_the_folders(texts: Sequence[str], expected: list[tuple[str, str]]) -> None:
    assert [(one.name, one.origin) for one in read_data_options(texts)] == expected


@pytest.mark.parametrize("texts", [["a/x", "b/x"], ["X=a", "x=b"], ["a="]])
def test_names_that_are_not_unique_or_without_a_folder_are_refused(texts: Sequence[str]) -> None:
    with pytest.raises(ValueError, match=r"two are named|expected DIR"):
        read_data_options(texts)


@pytest.mark.parametrize("path", ["data", "a/b", "../mydata", "../my/data", "/mnt/set", "/home/ana/set", "/data"])
def test_places_that_a_node_can_have(path: str) -> None:
    assert is_possible_place(path)


@pytest.mark.parametrize(
    "path",
    [".", "..", "../..", "../../x", "a/../../b", "../code", "../code/x", "../checkpoints", "../plan.json", "../.x",
     "//etc", "/opt/venv", "/var/run/secrets",
     "/", "/usr/share", "/opt", "/workspace/x", "/tmp", "/etc", "/mnt/a,b", "/mnt/a:b", "a\nb", "a//b", ""],
)  # fmt: skip
def test_places_that_would_hide_something_or_leave_the_run(path: str) -> None:
    assert not is_possible_place(path)


def test_the_paths_of_a_script_lead_to_its_data(code: Path) -> None:
    request = asked("./data", "../mydata", f"far={code.parent}/far/set")
    assert [one.places for one in request.data] == [("data",), ("../mydata",), ("../far/set", f"{code.parent}/far/set")]
    assert request.code_digest == code_digest(code, {"data"}) != code_digest(code)
    assert set(request.folders) == {request.code_digest, *(one.digest for one in request.data)}
    plan = planned(request)
    assert from_json(to_json(plan), where="plan.json") == plan
    spec, run = plan.nodes[0].container, f"runs/{plan.run_id}"
    held = [f"/workspace/data/{one.digest}" for one in request.data]
    names = ("", "_DATA", "_MYDATA", "_FAR")
    assert [spec.environment[f"ORCH_DATA_DIR{name}"] for name in names] == [held[0], *held]
    shown = {mount.target: (mount.source, mount.read_only) for mount in spec.mounts}
    for target, one in (*zip(held, request.data, strict=True), (f"{code.parent}/far/set", request.data[2])):
        assert shown[target] == (f"{plan.nodes[0].folder}/data/{one.digest}", True)
    without_container = on_host(spec).environment["ORCH_DATA_DIR_MYDATA"]
    assert without_container == f"{plan.nodes[0].folder}/data/{request.data[1].digest}"
    links = {name: to for one in plan.data for name, to in one.links(plan.run_id, "alpha").items()}
    assert list(links) == [f"{run}/code/data", f"{run}/mydata", f"{run}/far/set"]
    for one, (name, to) in zip(plan.data, links.items(), strict=True):
        assert os.path.normpath(Path(name).parent / to) == f"data/{one.digest}"


def test_a_folder_seen_from_another_one_is_found_from_both(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code.parent)
    (one,) = asked("mydata", workdir=Path("proj")).data
    assert one.places == ("../mydata", "mydata")


def test_a_path_that_no_node_can_have_is_shown_with_the_variable(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "deep/er").mkdir(parents=True)
    (code / "deep/er/train.py").write_text("")
    monkeypatch.chdir(code / "deep/er")
    notes: list[object] = []
    (one,) = asked("../../data", notes=notes).data
    assert one.places == ()
    assert notes == ["note: --data ../../data: no such path leads to it on the nodes; in the script: "
                     "os.environ['ORCH_DATA_DIR_DATA']"]  # fmt: skip
    monkeypatch.chdir(code)
    notes.clear()
    far = str(code.parent.parent / "elsewhere")
    Path(far).mkdir()
    (Path(far) / "x").write_text("1")
    asked(far, engine="process", notes=notes)
    assert "alpha, beta run no containers, and have no " in str(notes)


def test_a_resumed_run_keeps_its_data_and_a_name_replaces_one(code: Path) -> None:
    first = planned(asked("./data", "val=../mydata"))
    assert asked(earlier=first).data == first.data
    assert asked(earlier=first).folders == {}
    changed = asked("val=../far/set", earlier=first)
    assert [one.name for one in changed.data] == ["data", "val"]
    assert changed.data[0] == first.data[0]
    assert changed.data[1].places == ("../far/set",)
    assert [one.name for one in asked("../far/set", earlier=first).data] == ["set"]
    line = ["--data", f"{code}/data", "--data", f"val={code.parent}/mydata", "--", *SCRIPT]
    assert list(launch_words(first))[-len(line) :] == line


def test_a_plan_of_a_node_places_nothing_elsewhere(code: Path) -> None:
    plan = planned(asked("./data"))
    for place in ("../../../.ssh", "/etc", "../code"):
        with pytest.raises(ConfigError, match="is not a plan"):
            from_json(to_json(plan).replace('"data"\n      ]', f'"{place}"\n      ]'), where="plan.json")


# ── Bad input: one message, and nothing was copied ────────────────────────────────────────────────────────────────────


def test_a_link_is_followed_to_its_folder_and_stays_where_the_script_looks(code: Path) -> None:
    (code / "set").symlink_to("../far/set")
    (one,) = asked("./set").data
    assert (one.origin, one.places) == (str(code.parent / "far/set"), ("set",))
    assert launch_words(planned(asked("./set")))[-4:-2] == (f"{code.parent}/far/set", "--")


@pytest.mark.parametrize(
    ("make", "word", "expected"),
    [
        ("mkdir empty", "empty", "holds no files"),
        ("touch one.csv", "one.csv", r"is a file, and data are a folder"),
        ("ln -s /nowhere gone", "gone", r"is a link to /nowhere, which is not a folder"),
        (":", "none", r"--data none is not a folder"),
        ("ln -s ../../far data/far", "data", r"links that lead out of it or nowhere: data/far → \.\./\.\./far"),
        ("ln -s nothing data/gone", "data", r"links that lead out of it or nowhere: data/gone → nothing"),
    ],
)
def test_a_folder_that_cannot_be_brought_is_refused(code: Path, make: str, word: str, expected: str) -> None:
    subprocess.run(["sh", "-c", make], check=True)
    with pytest.raises(ConfigError, match=expected):
        asked(word)


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("./dta", "--data data"),
        ("Daten", "--data data"),
        ("../mydatas", "--data ../mydata"),
        ("../fra/sett", "--data ../far/set"),
        ("val=../my_data", "--data val=../mydata"),
        ("../mydata/deeper", "ls ../mydata"),
        ("/nowhere/at/all", "ls /"),
        ("Data", "orch prepare"),
    ],
)
@pytest.mark.usefixtures("code")
def test_a_path_with_a_typing_error_is_answered_with_the_nearest(typed: str, proposed: str) -> None:
    with pytest.raises(ConfigError, match="is not a folder") as caught:
        asked(typed)
    assert proposed in caught.value.hint
    assert ("orch prepare" in caught.value.hint) == (typed == "Data")


def test_the_code_itself_a_home_and_nested_data_are_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is the folder of the code"):
        asked(".")
    (code / "data/val").mkdir()
    (code / "data/val/y").write_text("1")
    with pytest.raises(UsageError, match=r"/data/val lies in --data .*/data, which"):
        asked("data", "val=data/val")
    monkeypatch.setenv("HOME", str(code.parent / "far/set"))
    with pytest.raises(UsageError, match="with everything in it"):
        asked("../far")


def test_a_folder_of_the_code_with_other_content_is_an_error(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code.parent)
    (code / "mydata").mkdir()
    (code / "mydata/x.csv").write_text("another")
    with pytest.raises(ConfigError, match=r"would be mydata for the script, and proj/mydata is a folder with") as why:
        asked("mydata", workdir=Path("proj"))
    assert why.value.hint.startswith(f"--data mydata={code.parent}/mydata   # in the script: os.environ[")
    (code / "mydata/x.csv").write_text("mydata")
    (one,) = asked("mydata", workdir=Path("proj")).data
    assert one.digest == folder_digest(code / "mydata")


def test_data_behind_a_link_of_the_code_is_an_error(code: Path) -> None:
    """The link leads on a node to a place of that machine, whose own files are not replaced."""
    (code / "sets").symlink_to(code.parent / "far")
    with pytest.raises(ConfigError, match=r"would be sets/set for the script, and sets is a link to another place"):
        asked("sets/set")


@pytest.mark.parametrize("made", ["ln -s ../../../home runs/r/code/sets", "touch runs/r/code/sets"])
def test_no_file_of_a_node_is_replaced_by_a_link(tmp_path: Path, made: str) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (home / "set").mkdir(parents=True)
    (project / "runs/r/code").mkdir(parents=True)
    subprocess.run(["sh", "-c", made.replace("../../../home", str(home))], check=True, cwd=project)
    place = "runs/r/code/sets/set" if "ln" in made else "runs/r/code/sets"
    ran = subprocess.run(["sh", "-c", _LINK, "sh", project, place, "../x"], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr != "") == (1, True)
    assert (home / "set").is_dir()
    assert not (home / "set").is_symlink()


@pytest.mark.parametrize("linked", ["runs/r/code", "runs/r", "data"])
def test_nothing_is_written_through_a_link_that_a_run_has_left(tmp_path: Path, linked: str) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    (project / linked).parent.mkdir(parents=True)
    (project / linked).symlink_to(home)
    words = ["sh", "-c", _PREPARE, "sh", project, "r", ""]
    ran = subprocess.run(words, input="{}", check=False, capture_output=True, text=True)
    assert (ran.returncode, f"{linked} is a link" in ran.stderr, list(home.iterdir())) == (1, True, [])


def test_a_workload_reads_one(code: Path) -> None:
    with pytest.raises(UsageError, match="reads one folder of data, and there are data, mydata"):
        build_request(
            Inventory(nodes=(lan.spec("alpha"),)),
            LaunchOptions(data=read_data_options(["data", "../mydata"]), command=("gpt2",)),
            None,
            {},
        )


def test_names_of_variables_are_those_of_a_shell() -> None:
    assert DataFolder(name="My_set2").variable == "ORCH_DATA_DIR_MY_SET2"
