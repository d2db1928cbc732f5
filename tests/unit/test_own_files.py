"""A script that writes to its data, or does not find what only the computer of the launch has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.failures.classify import Classified, FailedRank, classify
from orchestrator.checks.causes import Cause
from orchestrator.checks.own_files import OwnFiles
from orchestrator.fleet.runs.code_files import is_folder
from orchestrator.specs.plan import Plan
from tests import lan
from trainer.agent.own_data import leads_to_data
from trainer.agent.rank_exit import read_rank_exit

SCRIPT = ("python", "train.py")
TRACEBACK = ("Traceback (most recent call last):", '  File "/w/train.py", line 3, in <module>', "    go()")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for file in ("proj/train.py", "proj/data/train.csv", "mydata/x/y.txt", "proj/mine.csv"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1")
    return tmp_path / "proj"


def run_of(code: Path) -> Plan:
    return lan.plan(command=SCRIPT, own_code=True, code_digest=lan.DIGEST, code_origin=str(code))


def not_found(message: str, plan: Plan) -> Classified:
    error = f"FileNotFoundError: {message}"
    found = classify(FailedRank(own=(*TRACEBACK, error), exit_code=1))
    assert found is not None
    return OwnFiles(plan=plan, is_folder=is_folder).looked_up(found)


@pytest.mark.parametrize(
    ("message", "folder"),
    [
        ("[Errno 2] No such file or directory: './data/train.csv'", "proj/data"),
        ("[Errno 2] No such file or directory: 'data'", "proj/data"),
        ("[Errno 2] No such file or directory: '../mydata/x/y.txt'", "mydata/x"),
        ("[Errno 2] No such file or directory: '/workspace/runs/0102-1504-ab12/code/data/train.csv'", "proj/data"),
        ("[Errno 2] No such file or directory: '/workspace/runs/0102-1504-ab12/mydata'", "mydata"),
        ("[Errno 2] No such file or directory: '{root}/mydata/x/y.txt'", "mydata/x"),
        ("no csv files in ../mydata", "mydata"),
    ],
)
def test_a_file_that_is_here_is_brought_by_the_line_that_is_proposed(code: Path, message: str, folder: str) -> None:
    found = not_found(message.format(root=code.parent), run_of(code))
    assert found.id == "data.not_brought"
    cause = Cause.of(found, job=None, node="alpha", rank="0", run="r")
    given = f"--workdir {code} --data {code.parent / folder} -- python train.py"
    assert cause.fix == (f"orch launch --nodes alpha,beta {given}",)
    assert "is on this computer and not on alpha" in cause.explanation


@pytest.mark.parametrize(
    "message",
    [
        "[Errno 2] No such file or directory: './data/val.csv'",
        "[Errno 2] No such file or directory: './mine.csv'",
        "[Errno 2] No such file or directory: '/'",
        "nothing was found",
    ],
)
def test_nothing_is_proposed_that_would_not_help(code: Path, message: str) -> None:
    """Cases: not here either; lies beside the code; no path at all."""
    assert not_found(message, run_of(code)).id == "storage.not_found"


def test_a_sentence_of_the_script_is_no_path(code: Path) -> None:
    cause = Cause.of(not_found("no csv files in data2", run_of(code)), job=None, node="alpha", rank="0", run="r")
    assert cause.explanation == "what it looks for (no csv files in data2) does not exist on alpha"


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("assert os.path.exists(path)", "AssertionError", "what it looks for (os.path.exists(path))"),
        ("assert osp.isdir(args.data), 'bad'", "AssertionError: bad", "what it looks for (osp.isdir(args.data))"),
        ("assert (root / 'train').is_dir()", "AssertionError", "what it looks for ((root / 'train').is_dir())"),
        ("check(path)", "AssertionError: ./set/val not found", "./set/val"),
        ("check(path)", "ValueError: /srv/set is not a directory", "/srv/set"),
        ("load()", "FileNotFoundError: set/train.bin not found.", "set/train.bin"),
        (
            "load()",
            "RuntimeError: Dataset not found. You can use download=True to download it",
            "what it looks for (Data",
        ),
        ("load()", "RuntimeError: Found 0 images in subfolders of: set", "what it looks for (Found 0 images in"),
    ],
)
def test_a_check_of_the_script_that_fails_is_data_that_is_not_there(
    code: Path, source: str, error: str, words: str
) -> None:
    """Its lines show it, and its agent's report; the report alone, too."""
    own, looked = (*TRACEBACK[:2], f"    {source}", error), OwnFiles(plan=run_of(code), is_folder=is_folder)

    def explained(failed: FailedRank) -> str:
        found = classify(failed)
        assert found is not None
        found = looked.looked_up(found)
        assert (found.id, found.owner) == ("storage.not_found", "configuration")
        cause = Cause.of(found, job=None, node="alpha", rank="0", run="r")
        assert "--data FOLDER" in cause.fix[0]
        return cause.explanation

    reported = FailedRank(own=own, exit_code=1, reported=error, reported_id="storage.not_found")
    assert explained(FailedRank(own=own, exit_code=1)).startswith(words)
    assert explained(reported).startswith(words)
    assert "?" not in explained(replace(reported, own=()))


def test_a_check_that_names_what_is_here_proposes_the_line(code: Path) -> None:
    own = (*TRACEBACK[:2], "    assert root.is_dir(), f'{root} not found'", "AssertionError: ../mydata/x not found")
    found = classify(FailedRank(own=own, exit_code=1))
    assert found is not None
    assert OwnFiles(plan=run_of(code), is_folder=is_folder).looked_up(found).id == "data.not_brought"


@pytest.mark.parametrize(
    ("source", "error", "cause"),
    [
        ("assert x.shape == y.shape", "AssertionError", "code.assertion"),
        ("assert n > 0", "AssertionError: no sample", "code.assertion"),
        ("take(batch)", "ValueError: field data not found in batch", "code.exception"),
        ("frame[key]", "KeyError: 'data not found in axis'", "code.exception"),
        ("frame[key]", "ValueError: The column data does not exist", "code.exception"),
        ("build()", "ValueError: timm/resnet51 was not found", "code.exception"),
        ("assert not out.exists(), 'refusing to overwrite'", "AssertionError: refusing to overwrite", "code.assertion"),
        ("assert args.resume or not out.exists()", "AssertionError", "code.assertion"),
        ("assert os.path.exists(a) and not os.path.exists(b)", "AssertionError", "code.assertion"),
    ],
)
def test_other_checks_stay_what_they_are(source: str, error: str, cause: str) -> None:
    found = classify(FailedRank(own=(*TRACEBACK[:2], f"    {source}", error), exit_code=1))
    assert found is not None
    assert found.id == cause


@pytest.mark.parametrize(("exit_code", "cause"), [(-9, "memory.killed"), (-11, "crash.segfault")])
@pytest.mark.parametrize(
    "line", ["Error: config file not found, using defaults", "ConfigError: cache file not found; a new one is made"]
)
def test_a_file_that_the_program_did_without_is_no_cause_of_its_end(exit_code: int, cause: str, line: str) -> None:
    found = classify(FailedRank(own=(line, "step 1"), exit_code=exit_code))
    assert found is not None
    assert found.id == cause


def test_data_that_was_given_is_not_proposed_again(code: Path) -> None:
    plan = lan.plan(command=SCRIPT, own_code=True, code_origin=str(code), data=lan.data(origin=code / "data"))
    assert not_found("[Errno 2] No such file or directory: 'data/train.csv'", plan).id == "storage.not_found"


@pytest.mark.parametrize(
    ("error", "path"),
    [
        ("OSError: [Errno 30] Read-only file system: './data/raw'", "./data/raw"),
        ("PermissionError: [Errno 13] Permission denied: 'data/raw'", "data/raw"),
        ("RuntimeError: File data/model.pt cannot be opened.", "data/model.pt"),
    ],
)
def test_a_script_that_writes_to_its_data_ends_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, path: str
) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/data").symlink_to("../held")
    monkeypatch.chdir(tmp_path / "code")
    here = {"ORCH_DATA_DIR_SET": str(tmp_path / "held"), "ORCH_NODE": "alpha"}
    assert leads_to_data(path, here)
    assert not leads_to_data("out/x", here)
    assert not leads_to_data(path, {})
    lines = [f"[rank0]: {line}" for line in (*TRACEBACK, error)]
    ended = read_rank_exit("alpha", 1, lines, first_rank=0, is_data=lambda one: leads_to_data(one, here))
    assert (ended.cause, ended.outcome) == ("data.read_only", "user"), "another try writes there again"
    assert read_rank_exit("alpha", 1, lines, first_rank=0).cause.startswith("storage.")


@pytest.mark.parametrize(
    ("module", "files", "step"),
    [
        ("sklearn.svm", ("train.py",), "echo scikit-learn >> requirements.txt && orch build"),
        ("boto3", ("train.py", "requirements.txt"), "orch build --requirements {code}/requirements.txt"),
        ("mingpt", ("projects/adder.py", "requirements.txt", "mingpt/__init__.py"), "{code} --env PYTHONPATH=. --"),
        ("mingpt", ("train.py", "requirements.txt", "src/mingpt/__init__.py"), "{code} --env PYTHONPATH=src --"),
    ],
)
def test_a_module_that_the_folder_has_or_lists_is_brought_by_the_line_that_is_proposed(
    tmp_path: Path, module: str, files: tuple[str, ...], step: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    error = f"ModuleNotFoundError: No module named '{module}'"
    found = classify(FailedRank(own=(*TRACEBACK, error), exit_code=1))
    assert found is not None
    found = OwnFiles(plan=run_of(tmp_path), is_folder=is_folder).looked_up(found)
    cause = Cause.of(found, job=None, node="alpha", rank="0", run="r")
    assert step.format(code=tmp_path) in cause.fix[0]
    assert module in cause.explanation
