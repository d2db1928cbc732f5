"""Behavior of processes: one outlives its launcher, all it started dies with it, its paths are the machine's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.nodes.processes.engine import ProcessEngine
from orchestrator.nodes.processes.files import ProcessFiles, processes_folder
from orchestrator.specs.container import Mount
from orchestrator.specs.errors import EngineError
from orchestrator.specs.run import State
from tests.contract.test_engine import spec, texts

IN_ANOTHER_SESSION = "setsid sh -c 'echo asleep; sleep 60' & wait"
"""Command that starts a process as torchrun starts its ranks: out of reach of a signal to the group."""


@pytest.fixture
def engine(home: Path) -> Iterator[ProcessEngine]:
    engine = ProcessEngine("alpha")
    yield engine
    for facts in engine.containers({}):
        engine.remove(facts.id)


def files_of(container: str) -> ProcessFiles:
    return ProcessFiles(processes_folder() / "alpha" / container)


def launched(engine: ProcessEngine, script: str) -> ProcessFiles:
    """Running, and its first line written."""
    container = engine.create(spec(script))
    engine.start(container)
    assert next(iter(engine.logs(container, follow=True))).text == "asleep"
    return files_of(container)


def supervisor_of(files: ProcessFiles) -> int:
    """The parent of its first process."""
    first = json.loads(files.started.read_text())["pid"]
    return int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_inherits_no_secret_and_keeps_none_in_its_files(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_TOKEN", "ASKED_FOR", "HARMLESS"):
        monkeypatch.setenv(name, "hush-hush")
    plain = spec('echo "token: $MY_TOKEN, asked for: $ASKED_FOR, harmless: $HARMLESS"')
    asked = {**plain.environment, "ASKED_FOR_FILE": "/run/secrets/ASKED_FOR"}
    container = engine.create(replace(plain, environment=asked))
    engine.start(container)
    assert texts(engine, container, follow=True) == ["token: , asked for: , harmless: hush-hush"]
    saved = json.loads(files_of(container).launch.read_text())["environment"]
    assert {name for name, value in saved.items() if value == "hush-hush"} == {"HARMLESS"}
    assert processes_folder().joinpath("alpha").stat().st_mode & 0o777 == 0o700


def test_it_outlives_the_program_that_started_it(engine: ProcessEngine) -> None:
    container = engine.create(spec("echo asleep; sleep 0.5; echo awake"))
    start = (
        f"from orchestrator.nodes.processes.engine import ProcessEngine; ProcessEngine('alpha').start('{container}')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", start], check=True, env=environment)
    assert texts(engine, container, follow=True) == ["asleep", "awake"]
    assert engine.wait(container).exit_code == 0


def test_all_that_it_started_ends_with_a_stop(engine: ProcessEngine) -> None:
    files = launched(engine, f"trap '' TERM; {IN_ANOTHER_SESSION}")
    assert len(list(files.members())) >= 3
    engine.stop(files.id, 0)
    assert list(files.members()) == []


def test_all_that_it_started_ends_when_it_ends_itself(engine: ProcessEngine) -> None:
    files = launched(engine, IN_ANOTHER_SESSION)
    os.kill(json.loads(files.started.read_text())["pid"], signal.SIGKILL)
    assert engine.wait(files.id).exit_code == 137
    assert list(files.members()) == []


def test_a_supervisor_that_was_killed_is_a_failure(engine: ProcessEngine) -> None:
    files = launched(engine, IN_ANOTHER_SESSION)
    os.kill(supervisor_of(files), signal.SIGKILL)
    ended = engine.wait(files.id)
    assert (ended.status, ended.state, ended.exit_code) == ("dead", State.FAILED, 137)
    assert "supervisor" in ended.error
    assert list(files.members()) == []
    assert texts(engine, files.id) == ["asleep"]


def test_it_is_started_again_after_a_failure(engine: ProcessEngine, tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/tries; grep -c x {tmp_path}/tries; test $(grep -c x {tmp_path}/tries) = 3"
    container = engine.create(spec(script, restart_on_failure=5))
    engine.start(container)
    ended = engine.wait(container)
    assert (ended.exit_code, ended.restarts) == (0, 2)
    assert texts(engine, container) == ["1", "2", "3"]


def test_it_gives_up_after_as_many_restarts_as_were_allowed(engine: ProcessEngine) -> None:
    container = engine.create(spec("echo try; exit 9", restart_on_failure=2))
    engine.start(container)
    assert engine.wait(container).exit_code == 9
    assert texts(engine, container) == ["try"] * 3


def test_it_is_not_started_again_where_this_was_disabled(engine: ProcessEngine) -> None:
    container = engine.create(spec("echo begun; sleep 0.5; exit 9", restart_on_failure=5))
    engine.start(container)
    assert next(iter(engine.logs(container, follow=True))).text == "begun"
    engine.disable_restart(container)
    ended = engine.wait(container)
    assert (ended.status, ended.exit_code, ended.restarts) == ("exited", 9, 0)


def test_a_stop_is_no_failure_to_start_again_after(engine: ProcessEngine) -> None:
    container = engine.create(spec("trap 'exit 9' TERM; echo asleep; sleep 60 & wait", restart_on_failure=5))
    engine.start(container)
    assert next(iter(engine.logs(container, follow=True))).text == "asleep"
    engine.stop(container, 10)
    ended = engine.container(container)
    assert ended is not None
    assert (ended.status, ended.exit_code, ended.restarts) == ("exited", 9, 0)


def test_paths_of_the_container_are_those_of_its_mounts(engine: ProcessEngine, tmp_path: Path) -> None:
    project, data = tmp_path / "project", tmp_path / "digest"
    (project / "Data").mkdir(parents=True)
    data.mkdir()
    (data / "part").write_text("data\n")
    done = engine.run_once(
        spec(
            'pwd; cat Data/part; cat "$1/part"; echo "$RUN_DIR" "$2" "$3"',
            "/workspace/Data",
            "--log-dir=/workspace/logs",
            "/workspacex",
            mounts=(
                Mount(source=str(project), target="/workspace"),
                Mount(source=str(data), target="/workspace/Data", read_only=True),
            ),
            environment={"RUN_DIR": "/workspace/runs/1"},
            working_dir="/workspace",
        )
    )
    assert done.stderr == ""
    folder, relative, absolute, words = done.stdout.splitlines()
    assert (folder, relative, absolute) == (str(project), "data", "data")
    assert words == f"{project}/runs/1 --log-dir={project}/logs /workspacex"


def test_files_where_data_would_be_seen_are_not_hidden(engine: ProcessEngine, tmp_path: Path) -> None:
    (tmp_path / "project" / "Data").mkdir(parents=True)
    (tmp_path / "project" / "Data" / "mine").write_text("")
    mounts = (
        Mount(source=str(tmp_path / "project"), target="/workspace"),
        Mount(source=str(tmp_path), target="/workspace/Data"),
    )
    with pytest.raises(EngineError, match="holds files"):
        engine.create(spec("true", mounts=mounts))
    assert (tmp_path / "project" / "Data" / "mine").exists()


def test_a_program_that_is_missing_is_named(engine: ProcessEngine) -> None:
    container = engine.create(spec("", command=("no-such-program",)))
    with pytest.raises(EngineError, match="no-such-program"):
        engine.start(container)


def test_torchrun_is_that_of_this_python_or_an_error_says_what_to_install(engine: ProcessEngine) -> None:
    torchrun = spec("", command=("torchrun", "--help"))
    if engine.facts().version:
        assert "--master-addr" in engine.run_once(torchrun).stdout
        return
    with pytest.raises(EngineError, match="has no torch") as raised:
        engine.create(torchrun)
    assert "'.[trainer]'" in raised.value.hint


def test_there_are_no_images(engine: ProcessEngine) -> None:
    assert engine.images() == []
    with pytest.raises(EngineError, match="a process engine has no images"):
        engine.load([b""])
