"""Files that are results, and the comparison of the nodes' lists."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from contract.result_files import (
    MAX_FILES,
    FileDifferences,
    ResultFile,
    ResultFiles,
    bounded,
    compare,
    read_result_files,
)
from contract.result_paths import content_problem, path_problem
from tests.each_case import failures_of

RESULTS = (
    "code/out/last.pt", "code/out/log.csv", "code/output/checkpoint-500/pytorch_model.bin", "own.pt",
    "code/lightning_logs/version_0/checkpoints/epoch=3-step=40.ckpt", "code/rng_state_1.pth", "code/ppo.zip",
    "code/output/checkpoint-500/trainer_state.json", "code/run/latest", "code/Ergebnis für alle.txt",
    "code/checkpoints/last.safetensors", "code/__0_0.distcp", "code/zero_pp_rank_1_mp_rank_00_optim_states.pt",
)  # fmt: skip
NEVER = (
    "", ".", "..", "../x", "code/../x", "/etc/passwd", "code//x", "code/./x", "code/.ssh/config", ".over-1", "~/x",
    "-rf", "code/a\nb", "code/a\x00b", "code/\ud800", "code\\..\\x", "code/x ", "x" * 500, "/".join("a" * 20),
    "code/train2.py", "code/json.py", "code/JSON.PY", "code/json/__init__.py", "code/a.pyc", "code/a.pyx", "code/a.so",
    "code/libc.so.6", "code/numpy.libs/a.so.1.2", "code/__pycache__/json.data", "code/bin/python", "code/a.egg/x.txt",
    "code/site-packages/x.pth", "code/run.sh", "code/a.bash", "code/python311._pth", "code/a.pyd", "code/a.whl",
    "agents.token", "over-1.json", "place-0.json", "stopped", "attempts/3/id", "checkpoints/step-00000009/state.pt",
    "code-ab.list", "copied-files.json", "best.json", "resources-0.jsonl", "progressed", "left", "secrets/TOKEN",
)  # fmt: skip


def test_only_results_are_copied() -> None:
    assert [path for path in RESULTS if path_problem(path)] == []
    assert [path for path in NEVER if not path_problem(path)] == []


def test_a_program_is_recognized_by_its_beginning() -> None:
    assert content_problem("code/latest", b"#!/bin/sh") != ""
    assert content_problem("code/model.bin", b"\x7fELF\x02\x01") != ""
    assert content_problem("code/x.pth", b"import os") != ""
    assert content_problem("code/x.pth", b"PK\x03\x04abcd") == content_problem("code/x.pth", b"\x80\x02") == ""


def listed(*files: ResultFile) -> dict[str, Any]:
    return asdict(ResultFiles(files=files))


def of(path: str, size: int = 5, at: int = 7, **more: Any) -> ResultFile:
    return ResultFile(path=path, size=size, modified_us=at, **more)


def test_a_list_arrives_as_it_was_and_one_that_does_not_fit_is_none() -> None:
    files = (of("code/out/last.pt", copied=True), of("code/é.json", sha256="ab" * 32, launched=True))
    assert read_result_files(listed(*files)) == ResultFiles(files=files)

    def refused(values: Any) -> None:
        with pytest.raises(ValueError):  # noqa: PT011  # each has another text
            read_result_files(values)

    wrong = [
        None, [], {"files": 7}, {"files": [7]}, {"files": [{}]}, {"complete": "yes"}, {"folder": "x" * 65},
        listed(*[of(f"code/{number}") for number in range(MAX_FILES + 1)]),
        listed(of("code/a", size=-1)), listed(of("code/a", at=-1)), listed(of("code/a", at=2**60)),
        listed(of("code/a", sha256="x")), *({"files": [asdict(of("a")) | {"path": path}]} for path in NEVER),
    ]  # fmt: skip
    assert failures_of(refused, [(one,) for one in wrong]) == []


def test_lists_are_compared_by_path() -> None:
    last, log, own = of("code/last.pt"), of("code/log.csv", size=3), of("code/beta.csv")
    everything = ResultFiles(files=(last, log))
    assert compare(everything, {"beta": everything}) == FileDifferences()
    found = compare(everything, {"beta": ResultFiles(files=(of("code/log.csv", size=4), own)), "gamma": everything})
    assert dict(found.missing) == {"beta": (last,)}
    assert dict(found.differing) == {"code/log.csv": "beta"}
    assert dict(found.elsewhere) == {"beta": (own,)}
    assert compare(everything, {"beta": ResultFiles(complete=False)}).missing == {}
    shared = ResultFiles(files=(last,), folder="7.9")
    assert compare(shared, {"beta": ResultFiles(folder="7.9")}).missing == {}  # listed a moment earlier
    assert compare(shared, {"beta": ResultFiles(folder="8.9")}).missing != {}


def test_a_copy_is_replaced_by_a_newer_file_and_an_own_file_is_not() -> None:
    newest = ResultFiles(files=(of("code/last.pt", at=9),))
    copy, same, own = of("code/last.pt", copied=True), of("code/last.pt", at=9, copied=True), of("code/last.pt", 6)
    found = compare(newest, {node: ResultFiles(files=(file,)) for node, file in (("b", copy), ("c", same), ("d", own))})
    assert (list(found.missing), found.outdated) == (["b"], {"code/last.pt"})
    assert dict(found.differing) == {"code/last.pt": "d"}


def test_a_file_of_the_launch_that_changed_on_one_node_differs_and_is_not_missing() -> None:
    changed = ResultFiles(files=(of("code/last.pt", launched=True),))
    for found in (compare(changed, {"beta": ResultFiles()}), compare(ResultFiles(), {"beta": changed})):
        assert dict(found.missing) == dict(found.elsewhere) == {}
        assert dict(found.differing) == {"code/last.pt": "beta"}


def test_small_files_are_compared_by_content() -> None:
    one, other = (ResultFiles(files=(of("code/state.json", sha256=digit * 64),)) for digit in "ab")
    assert compare(one, {"beta": other}).differing
    assert not compare(one, {"beta": one}).differing


def test_a_list_holds_the_newest_files_and_fits_into_a_message() -> None:
    files = [of(f"code/{number}", at=number) for number in range(MAX_FILES + 50)]
    found = bounded(files)
    assert (len(found.files), found.complete, found.files[0].path) == (MAX_FILES, False, f"code/{MAX_FILES + 49}")
    long = bounded([of(f"code/{number}{'é' * 390}") for number in range(MAX_FILES)])
    assert not long.complete
    assert read_result_files(asdict(long)) == long
