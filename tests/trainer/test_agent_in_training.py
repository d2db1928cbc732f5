"""Checkpoints that survive any end of a run: SIGKILL at any moment, and a disk that is full."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import Call, Ranks, Result
from tests.trainer.observed import same, state
from tests.trainer.test_agent import free_port
from trainer import checkpoint_folder

LAST, EVERY = 360, 12
PIPE_BYTES = 4096
"""Size of the pipe of a process: it cannot come to its end before the process that kills it has looked."""


@pytest.mark.slow
def test_killed_five_times_it_is_the_undisturbed_run(
    train: Call, train_command: Callable[[Path], list[str]], child_environ: dict[str, str], tmp_path: Path
) -> None:
    """Bit by bit, with and without processes that load its data: each life resumes within an epoch."""
    options = ("--max-steps", str(LAST), "--batch-size", "4", "--dropout", "0.1", "--eval-every", "0")
    options = (*options, "--checkpoint-every", str(EVERY), "--no-compile", "--keep-checkpoints", "2")
    whole = train(tmp_path / "whole", *options)
    assert whole.code == 0, whole.err
    command = (sys.executable, "-m", "trainer", *train_command(tmp_path / "killed"), *options)
    lives = [
        _until_a_checkpoint((*command, "--num-workers", str(number % 2 * 2)), child_environ) for number in range(5)
    ]
    last = train(tmp_path / "killed", *options, "--num-workers", "2")
    assert last.code == 0, last.err

    resumed = [life.events("resumed")[0]["step"] for life in (*lives[1:], last)]
    assert resumed == sorted(set(resumed))
    epochs = {event["step"]: event["epoch"] for event in whole.events("step")}
    assert all(epochs[step] % 1 > 0 for step in resumed)
    losses = whole.losses()
    for life in (*lives, last):
        assert life.losses() == {step: losses[step] for step in life.losses()}
    assert same(state(tmp_path / "killed", LAST), state(tmp_path / "whole", LAST))
    assert checkpoint_folder.steps(tmp_path / "killed/checkpoints") == [LAST, LAST - EVERY]


def _until_a_checkpoint(command: tuple[str, ...], environ: Mapping[str, str]) -> Result:
    """Killed as soon as it tells of one, in whatever it is doing then."""
    seen = []
    with subprocess.Popen(
        command,
        env=environ,
        bufsize=0,  # otherwise lines that came together with the checkpoint's would be lost to `communicate`
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=PIPE_BYTES,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            seen.append(line)
            if b'"event": "checkpoint"' in line:
                process.kill()
                break
        rest, err = process.communicate()
    assert process.returncode == -9, f"{seen[-1]!r}{err.decode()}"
    return Result(code=-9, out=b"".join([*seen, rest[: rest.rfind(b"\n") + 1]]).decode(), err=err.decode())


def test_killed_while_it_writes_it_continues_from_the_one_before(forked: Callable[..., Ranks], tmp_path: Path) -> None:
    """Two ranks, each with something of its own: half a checkpoint of step 6 is none, and costs nothing."""
    usual = {"precision": "fp32", "compile": False, "num_workers": 0, "log_every": 1, "shares": "equal"}
    usual |= {"sync": "int4", "batch_size": 3, "max_steps": 12, "checkpoint_every": 3, "lr": 0.05}

    def run(name: str, **wishes: int) -> Ranks:
        options = json.dumps({**usual, "run_dir": str(tmp_path / name)})
        return forked(2, options, json.dumps(wishes), module="tests.trainer.observed")

    whole = run("whole").result()
    assert whole.code == 0, whole.err
    killed = run("killed", stuck_write=2)
    for line in killed.lines():
        if '"event": "step", ' in line and '"step": 8,' in line:
            while not list((tmp_path / "killed/checkpoints").glob(".tmp-*/state.pt")):  # a thread of its own writes it
                time.sleep(0.05)
            killed.kill()
            break
    before = killed.result()
    (scratch,) = (tmp_path / "killed/checkpoints").glob(".tmp-*")
    assert [path.name for path in scratch.iterdir()] == ["state.pt"]
    assert (tmp_path / "killed/ranks/step-00000006").is_dir()

    after = run("killed").result()
    assert after.code == 0, after.err
    assert {event["step"] for event in after.events("resumed")} == {3}
    assert before.losses() | after.losses() == whole.losses()
    assert same(state(tmp_path / "killed", 12), state(tmp_path / "whole", 12))
    for rank in (0, 1):
        file = f"ranks/step-00000012/rank-{rank}-of-2.pt"
        found, expected = (torch.load(tmp_path / name / file, weights_only=True) for name in ("killed", "whole"))
        assert same(found, expected)
    assert not list((tmp_path / "killed/checkpoints").glob(".tmp-*"))


def _small_disk(size: str, at: Path, *commands: Any) -> subprocess.CompletedProcess[str]:
    """Shell commands in a mount namespace of their own, where a disk of `size` lies at `at`."""
    at.mkdir(parents=True)
    as_root = () if os.getuid() == 0 else ("--map-root-user",)
    script = "; ".join((f"mount -t tmpfs -o size={size} small {shlex.quote(str(at))} || exit 99", *commands))
    argv = ("unshare", "--mount", *as_root, "sh", "-c", script)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")


@pytest.mark.parametrize("wish", ["--checkpoint-async", "--no-checkpoint-async"])
def test_a_full_disk_ends_the_run_and_the_last_good_one_stays(
    wish: str,
    train_command: Callable[[Path], list[str]],
    child_environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in child_environ.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "run/checkpoints"
    words = (*train_command(tmp_path / "run"), "--max-steps", "99", "--checkpoint-every", "5", "--eval-every", "0")
    train = shlex.join((sys.executable, "-m", "trainer", *words, "--keep-checkpoints", "9", "--no-compile", wish))
    verify = shlex.join((sys.executable, "-m", "trainer", "verify", str(root)))
    ran = _small_disk("1m", root, f"{train}; code=$?", f"ls -A {root}", verify, "exit $code")
    if ran.returncode in (1, 99) and "@orch" not in ran.stdout:
        pytest.skip(f"no mount namespaces here: {ran.stderr}")
    assert ran.returncode == 1, ran.stderr
    reported = Result(code=1, out=ran.stdout, err=ran.stderr)
    written = [event["step"] for event in reported.events("checkpoint")]
    assert len(written) > 1
    failed = f"No space left on device for the checkpoint of step {written[-1] + 5} in {root}"
    (event,) = reported.events("failed")
    assert event["message"].startswith(failed)
    assert f"the checkpoint of step {written[-1]} is kept" in event["message"]
    listed = [line for line in ran.stdout.splitlines() if line.startswith((".tmp", "step-"))]
    assert listed == [f"step-{step:08d}" for step in written]
    assert f"newest verified step: {written[-1]}" in ran.stdout


FILL = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


def test_on_a_full_disk_too_a_node_keeps_what_it_ended_of(
    child_environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker would otherwise start it again, to wait for the others, which know that all is over."""
    root = tmp_path / "run"
    for name, value in {**child_environ, "ORCH_RUN_DIR": str(root), "ORCH_RUN_ID": "full"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "fill.py").write_text(FILL)
    where = ("--nodes", "alpha", "--node-rank", "0", "--address", "127.0.0.1", "--port", str(free_port()))
    program = (sys.executable, str(tmp_path / "fill.py"), str(root / "filled"))
    survive = shlex.join((sys.executable, "-m", "trainer.agent", *where, "--", *program))
    ran = _small_disk(
        "1m", root, survive, "echo first: $?", f"rm {root}/filled", survive, "echo second: $?", f"ls -A {root}"
    )
    if "first" not in ran.stdout:
        pytest.skip(f"no mount namespaces here: {ran.stderr}")
    reported = Result(code=0, out=ran.stdout, err=ran.stderr)
    once, again = reported.events("finished")
    assert "No space left on device" in once["reason"]
    assert once["outcome"] == "configuration"
    assert again == {**once, "t": again["t"], "generation": 0}
    assert [line for line in ran.stdout.splitlines() if not line.startswith("@orch")] == [
        "first: 3",
        "second: 3",
        "over-0.json",
    ]
