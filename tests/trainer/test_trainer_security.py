"""Checkpoints from anywhere are hostile input: refused in words, and never run."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Call
from trainer import checkpoint_folder
from trainer.agent.handshake import read_greeting
from trainer.agent.messages import MisfitError, read_report
from trainer.agent.wire import AgentConnection
from trainer.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "trainer").rglob("*.py"))


def entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def made(folder: Path, files: dict[str, Any] | None = None, **about: Any) -> Path:
    """A checkpoint of step 7 with a manifest as its maker wants it."""
    path = folder / "checkpoints" / "step-00000007"
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(b"weights")
    manifest = {"step": 7, "files": {"state.pt": entry(b"weights")} if files is None else files, **about}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_a_whole_one_is_sound(tmp_path: Path) -> None:
    assert checkpoint_folder.examine(made(tmp_path)).problem == ""


@pytest.mark.parametrize(
    "name", ["../../secret", "{outside}", "..", ".", "a/b", "", "state.pt/../state.pt", "a\0b", "ü" * 300]
)
def test_names_that_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """A manifest could otherwise ask whether a file of this computer has a certain content."""
    outside = tmp_path / "secret"
    outside.write_bytes(b"mine")
    files = {"state.pt": entry(b"weights"), name.format(outside=outside): entry(b"mine")}
    assert checkpoint_folder.examine(made(tmp_path, files)).problem


@pytest.mark.parametrize(
    "files", [{}, {"tokenizer.json": entry(b"{}")}, [], [["state.pt", entry(b"weights")]], None, 7]
)
def test_a_state_that_the_manifest_does_not_vouch_for(tmp_path: Path, files: Any) -> None:
    path = made(tmp_path, {})
    (path / "tokenizer.json").write_bytes(b"{}")
    (path / "manifest.json").write_text(json.dumps({"step": 7, "files": files}))
    assert checkpoint_folder.examine(path).problem


def test_a_link_in_place_of_a_file(tmp_path: Path) -> None:
    path = made(tmp_path)
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (path / "state.pt").unlink()
    (path / "state.pt").symlink_to(tmp_path / "elsewhere")
    assert checkpoint_folder.examine(path).problem


def test_a_pipe_in_place_of_a_file_delays_nothing(tmp_path: Path) -> None:
    path = made(tmp_path, {"state.pt": entry(b"")})
    (path / "state.pt").unlink()
    os.mkfifo(path / "state.pt")
    assert checkpoint_folder.examine(path).problem


@pytest.mark.parametrize("step", [-7, 7.5, True, "7", None, [], 1 << 200, 8])
def test_a_step_that_is_none(tmp_path: Path, step: Any) -> None:
    assert checkpoint_folder.examine(made(tmp_path, step=step)).problem


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", '"step"', "null", "{}", '{"step": 1e999, "files": {}}', '{"step": ' + "9" * 5000 + "}",
        "[" * 100_000, '{"a":' * 100_000, "\0", '{"step": NaN}',
        '{"files": ' + "[" * 1000 + "]" * 1000 + ', "step": 7}',
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    path = made(tmp_path)
    (path / "manifest.json").write_text(text)
    assert checkpoint_folder.examine(path).problem


@pytest.mark.parametrize(
    "one", [{}, [], None, 7, {"bytes": 7}, {"bytes": "7", "sha256": ""}, {"bytes": 7, "sha256": 7}]
)
def test_an_entry_that_is_none(tmp_path: Path, one: Any) -> None:
    assert checkpoint_folder.examine(made(tmp_path, {"state.pt": one})).problem


def test_a_manifest_larger_than_any_of_ours_is_not_read(tmp_path: Path) -> None:
    path = made(tmp_path)
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    assert "manifest.json" in checkpoint_folder.examine(path).problem


@pytest.mark.parametrize("identity", [[], "gpt2", 7, None])
def test_an_identity_that_is_none(tmp_path: Path, identity: Any) -> None:
    assert checkpoint_folder.examine(made(tmp_path, identity=identity)).problem


@pytest.mark.parametrize("name", ["../elsewhere", "{outside}", ".", "", 7, None, ["step-00000007"]])
def test_a_best_that_leads_elsewhere(tmp_path: Path, name: Any) -> None:
    outside = made(tmp_path / "other").parent
    made(tmp_path / "run")
    (tmp_path / "run" / "elsewhere").symlink_to(outside)
    best = name.format(outside=outside) if isinstance(name, str) else name
    (tmp_path / "run" / "best.json").write_text(json.dumps({"checkpoint": best}))
    with pytest.raises(ConfigurationError):
        checkpoint_folder.locate(tmp_path / "run" / "best.json", lambda _text: None)


class Harm:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_a_state_that_would_run_something_is_refused_in_words(
    tmp_path: Path, train: Call, call: Call, protocol: str
) -> None:
    """Its manifest vouches for it: whoever made it made both."""
    run = tmp_path / "run"
    assert train(run, "--max-steps", "1").code == 0
    (newest,) = (run / "checkpoints").glob("step-*")
    state, mark = newest / "state.pt", tmp_path / "mark"
    if protocol == "zip":
        torch.save({"model": Harm(mark)}, state)
    else:
        state.write_bytes(pickle.dumps(Harm(mark), protocol=2))
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["files"]["state.pt"] = entry(state.read_bytes())
    (newest / "manifest.json").write_text(json.dumps(manifest))

    for ran in (train(run, "--max-steps", "2"), call("gpt2", "sample", "--checkpoint", str(run), "--prompt", "en")):
        assert ran.code == 3, ran.err
        assert "state.pt is no state of this model" in ran.err
        assert "Traceback" not in ran.err
    assert not mark.exists()


@pytest.mark.parametrize(
    "message", [b"[" * 60_000, b"{", b"7", b"\xff", b"null"], ids=["deep", "half", "7", "bytes", "null"]
)
def test_what_a_stranger_says_to_a_supervisor_is_no_message(message: bytes) -> None:
    """Its port is open to the network for as long as the run lasts."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as stranger:
        line = AgentConnection(door.accept()[0])
        stranger.sendall(message + b"\n")
        received = line.next(time.monotonic() + 5.0)
        line.close()
    assert received == message
    with pytest.raises(MisfitError):
        read_report(received, ["alpha", "beta"])
    with pytest.raises(MisfitError):
        read_greeting(received, "0" * 32, 2, b"token")


# ── what no source of the trainer does ──


def calls() -> list[tuple[str, ast.Call]]:
    return [
        (str(path.relative_to(ROOT)), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]


def test_torch_loads_weights_only_everywhere() -> None:
    loads = [(place, call) for place, call in calls() if ast.unparse(call.func) == "torch.load"]
    assert {place for place, _ in loads} == {
        "trainer/data/trace_tensors.py",
        "trainer/engine/checkpoints/state_file.py",
    }
    for place, call in loads:
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert words.get("weights_only") == "True", f"{place}:{call.lineno}"


def test_nothing_is_unpickled() -> None:
    """Files and messages alike: collectives of objects pickle too, as torch's format of checkpoints (DCP) does."""
    unpickles = {"pickle.load", "pickle.loads", "marshal.loads", "eval", "np.load"}
    for place, call in calls():
        called = ast.unparse(call.func)
        if called == "np.load":
            assert "allow_pickle" not in {word.arg for word in call.keywords}, f"{place}:{call.lineno}"
        else:
            assert called not in unpickles, f"{place}:{call.lineno}"
        assert not called.endswith("_object_list"), f"{place}:{call.lineno}"
        assert not called.endswith(("all_gather_object", "gather_object")), f"{place}:{call.lineno}"
    for path in SOURCES:
        assert "torch.distributed.checkpoint" not in path.read_text("utf-8"), path.name


def test_the_program_of_a_rank_is_all_that_is_executed() -> None:
    """The file of the command that the user has typed, compiled by the warm process as Python itself does."""
    executed = [(place, ast.unparse(call)) for place, call in calls() if ast.unparse(call.func) == "exec"]
    assert executed == [("trainer/agent/warm_process.py", "exec(part.code(), sys.modules['__main__'].__dict__)")]


def test_torch_is_one_that_keeps_its_word() -> None:
    """weights_only could be got around before 2.6 (CVE-2025-32434) and before 2.10 (CVE-2026-24747)."""
    floors = re.findall(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert floors
    assert all((int(major), int(minor)) >= (2, 10) for major, minor in floors)
