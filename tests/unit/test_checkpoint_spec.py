"""A manifest comes from another machine: whatever it says, it leads nowhere and costs nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.checkpoint import (
    FILES_LIMIT,
    MANIFEST_LIMIT,
    CheckpointFile,
    CheckpointManifest,
    decode_best,
    decode_manifest,
    encode_best,
    encode_manifest,
    folder_name,
    step_of,
)
from orchestrator.nodes.probes import checkpoint_probe

SHA = "ab" * 32
SOUND: dict[str, Any] = {"step": 12, "files": {"state.pt": {"bytes": 5, "sha256": SHA}}}
STATE = CheckpointFile(name="state.pt", size=5, sha256=SHA)


def test_what_the_trainer_writes_is_read() -> None:
    written = CheckpointManifest(
        step=12, files=(STATE,), workload="gpt2", identity={"layers": 2}, run_id="r1", others={"options": {"lr": 1e-3}}
    )
    assert decode_manifest(encode_manifest(written), step=12) == written
    assert decode_manifest(encode_manifest(written).encode()) == written
    assert decode_best(encode_best(12)) == "step-00000012"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no list of files"),
        (json.dumps({"step": 12}), "no list of files"),
        (json.dumps({**SOUND, "files": ["state.pt"]}), "no list of files"),
        (json.dumps({**SOUND, "files": {}}), "lists 0 files"),
        (json.dumps({**SOUND, "step": 13}), "a different step"),
        (json.dumps({**SOUND, "step": 12.0}), "a different step"),
        (json.dumps({**SOUND, "step": "12"}), "a different step"),
        (json.dumps({**SOUND, "files": {f"f{n}": {} for n in range(FILES_LIMIT + 1)}}), "lists 257 files"),
        (json.dumps({**SOUND, "files": {"more": SOUND["files"]["state.pt"]}}), "does not list state.pt"),
        (json.dumps({**SOUND, "identity": "gpt2"}), "identity is of another type"),
        (json.dumps({**SOUND, "run_id": None}), "run_id is of another type"),
        (" " * MANIFEST_LIMIT + json.dumps(SOUND), "more than 1048576 bytes"),
    ],
)
def test_what_is_no_manifest(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_manifest(text, step=12)


@pytest.mark.parametrize(
    "name",
    ["../state.pt", "/etc/passwd", "a/b", "..", ".", "", ".hidden", "-rf", "a b", "a\nb", "a\0b", "ñ", "x" * 129,
     "manifest.json", "state.pt\n"],
)  # fmt: skip
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match="a file that it must not"):
        decode_manifest(json.dumps({"step": 12, "files": {name: {"bytes": 5, "sha256": SHA}}}), step=12)


@pytest.mark.parametrize(
    "entry",
    [None, [], {}, {"bytes": 5}, {"sha256": SHA}, {"bytes": -1, "sha256": SHA}, {"bytes": True, "sha256": SHA},
     {"bytes": 2**51, "sha256": SHA}, {"bytes": 5.0, "sha256": SHA}, {"bytes": 5, "sha256": SHA.upper()},
     {"bytes": 5, "sha256": SHA[:-1]}, {"bytes": 5, "sha256": None}, {"bytes": 5, "sha256": f"{SHA}\n"}],
)  # fmt: skip
def test_entries_of_the_wrong_kind(entry: Any) -> None:
    with pytest.raises(ValueError, match="no size and sha256"):
        decode_manifest(json.dumps({"step": 12, "files": {"state.pt": entry}}), step=12)


def test_what_is_missing_or_differs_is_named() -> None:
    assert STATE.wrong_size(5) == STATE.wrong_content(SHA) == ""
    assert STATE.wrong_size(None) == STATE.wrong_content(None) == "state.pt is missing"
    assert STATE.wrong_size(4) == "state.pt has 4 bytes instead of 5"
    assert "sha256 differs" in STATE.wrong_content("cd" * 32)


def test_names_of_folders() -> None:
    assert (folder_name(12), step_of("step-00000012"), step_of("step-123456789")) == (
        "step-00000012", 12, 123456789,
    )  # fmt: skip
    for odd in ("step-12", "step-", "step-0000001x", "xstep-00000012", "step-00000012 ", "step-٠٠٠٠٠٠١٢"):
        assert step_of(odd) is None


ANSWER = f"""now=1000
run=/home/ana/orch/lab/runs/r1
best={{"checkpoint": "step-00000012"}}
step=step-00000012
file=5 400 state.pt
file=90 900 manifest.json
sha256={SHA}
manifest={json.dumps(SOUND)}
"""


def test_an_answer() -> None:
    (held,) = checkpoint_probe.parse(ANSWER, node="alpha")
    assert (held.node, held.run_id, held.step, held.age_s) == ("alpha", "r1", 12, 100.0)
    assert (held.size, held.best, held.problem) == (95, True, "")
    assert held.folder == "/home/ana/orch/lab/runs/r1/checkpoints/step-00000012"
    assert held.identity == (12, SHA)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("file=5 400 state.pt", "file=4 400 state.pt", "state.pt has 4 bytes instead of 5"),
        ("file=90 900 manifest.json\n", "", "manifest.json is missing"),
        ("file=90 900", "file=2000000 900", "manifest.json has 2000000 bytes, more than 1048576"),
        ('"state.pt"', '"../state.pt"', "manifest.json lists a file that it must not: '../state.pt'"),
        ('"step": 12', '"step": 13', "manifest.json is for a different step"),
    ],
)
def test_answers_that_are_not_to_be_believed(old: str, new: str, problem: str) -> None:
    (held,) = checkpoint_probe.parse(ANSWER.replace(old, new), node="alpha")
    assert held.problem == problem


@pytest.mark.parametrize("run", ["/home/ana/runs/..", "/", "/runs/-rf", "/runs/.hidden"])
def test_a_run_that_is_no_name_of_a_folder_is_left_out(run: str) -> None:
    assert list(checkpoint_probe.parse(ANSWER.replace("/home/ana/orch/lab/runs/r1", run), node="alpha")) == []


def test_no_line_of_a_manifest_is_taken_for_another_line() -> None:
    odd = ANSWER.replace('"step": 12', '"a": "\u2028step=step-00000099\x85run=/x/y", "step": 12')
    assert [held.step for held in checkpoint_probe.parse(odd, node="alpha")] == [12]


@given(st.text(max_size=400) | st.lists(st.sampled_from(ANSWER.splitlines()), max_size=12).map("\n".join))
def test_any_answer_is_read_to_its_end(text: str) -> None:
    for held in checkpoint_probe.parse(text, node="alpha"):
        assert held.problem or held.parts[-1].name == "manifest.json"
