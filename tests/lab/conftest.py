"""A LAN in a box of five nodes, its image built and its data prepared by the very commands that users type."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab.host import FOLDER_LABEL, LABEL, NODE_LABEL
from orchestrator.plan.image import DEFAULT_BASE
from tests.conftest import Figure, only_builder
from tests.json_output import json_data

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon")
LAB = f"orchtest{os.environ.get('PYTEST_XDIST_WORKER', '')}"
"""Each pytest-xdist worker that runs lab tests has a lab of its own."""
AS_ONE = ("--sync", "fp32", "--shares", "equal")
"""Options without measurements and with all nodes: what these runs compute depends on no clock."""
TINY = ("gpt2", "--preset", "tiny", "--no-amp", "--batch-size", "2", "--seed", "7", *AS_ONE)


@dataclass(frozen=True)
class Done:
    """A command line that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json_data(self.out)


@dataclass(frozen=True)
class Orch:
    """`orch` as a user runs it, in a folder and with state of its own."""

    folder: Path
    environment: dict[str, str] = field(repr=False)

    def __call__(self, *words: str, timeout_s: float = 300) -> Done:
        began = time.monotonic()
        ended = subprocess.run(
            self.argv(words), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )
        return Done(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def launch(self, *words: str, nodes: str = "5") -> Done:
        return self("launch", "--yes", "--nodes", nodes, *words)

    @staticmethod
    def argv(words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]


def read_until(process: subprocess.Popen[str], wanted: str, *, timeout_s: float = 120) -> str:
    """Read a command's output up to the line that holds `wanted`."""
    assert process.stdout is not None
    deadline, seen = time.monotonic() + timeout_s, ""
    for line in process.stdout:
        seen += line
        if wanted in line:
            return seen
        if time.monotonic() > deadline:
            break
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError(f"{wanted!r} did not come:\n{seen}")


def on_node(node: str, *argv: str) -> str:
    """Run a command as root on a machine of the lab, for the test alone, and return its output."""
    return subprocess.run(
        ["docker", "exec", f"orch-{LAB}-{node}", *argv], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def runs_of(node: str) -> str:
    """Folders of runs there; none where none was ever begun."""
    return on_node(node, "sh", "-c", "ls /home/orch/orch/lab/runs 2>/dev/null || true")


def running_on(node: str) -> list[str]:
    """Names of the containers that run on a node."""
    return on_node(node, "docker", "ps", "--format", "{{.Names}}").split()


def nothing_is_left(before: dict[str, str]) -> None:
    """No container is there, and no folder of a run that was not there `before`."""
    for name in NAMES:
        assert on_node(name, "docker", "ps", "-aq") == "", name
        assert runs_of(name) == before[name]


@pytest.fixture
def before(orch: Orch) -> dict[str, str]:
    """Folders of runs on each node; containers of runs that have ended are taken away first."""
    assert orch("clean").code == 0
    return {name: runs_of(name) for name in NAMES}


@pytest.fixture(scope="session")
def orch(tmp_path_factory: pytest.TempPathFactory, figure: Figure) -> Iterator[Orch]:
    """Five nodes, image there, data prepared. Everything but images is removed at the end."""
    with a_lab(tmp_path_factory.mktemp("lab"), len(NAMES), figure) as command:
        yield command


def link_images(source: str, machines: Sequence[str], lab: str = LAB) -> None:
    """Give machines that are switched off, or not made yet, the images of another one, as hard links. An engine that
    unpacks the image takes 40 s of a CPU; layers are never written, and linked ones are in memory once. `source` is a
    container's name; the machines are of `lab`. It may be at work: only layers of images are linked, for those of its
    containers come and go in the meantime.
    """
    root = subprocess.run(
        ["docker", "info", "--format", "{{.DockerRootDir}}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    script = f"""
        from=/volumes/{source}/_data
        for name in {" ".join(machines)}; do
            cd /volumes/orch-{lab}-$name/_data
            rm -rf image overlay2
            mkdir -p image/overlay2/layerdb overlay2/l
            cp -a $from/image/overlay2/layerdb/sha256 image/overlay2/layerdb/
            cp -a $from/image/overlay2/distribution $from/image/overlay2/imagedb image/overlay2/
            cp -a $from/image/overlay2/repositories.json image/overlay2/
            for cached in image/overlay2/layerdb/sha256/*/cache-id; do
                layer=$(cat $cached)
                cp -al $from/overlay2/$layer overlay2/
                cp -a $from/overlay2/l/$(cat overlay2/$layer/link) overlay2/l/
            done
        done"""
    subprocess.run(
        ["docker", "run", "--rm", "--volume", f"{root}/volumes:/volumes", DEFAULT_BASE, "sh", "-euc", script],
        check=True,
        timeout=300,
    )


@dataclass(frozen=True)
class Prepared:
    """A lab of another worker that has all that a launch needs."""

    machine: str
    """The container of a machine with the images."""
    data: Path

    @staticmethod
    def find() -> Prepared | None:
        """Workers ask one at a time, before they make their own. A Slurm cluster has machines of that name, too, and no
        image on them."""
        words = (
            "--filter",
            "name=^orch-orchtest(gw[0-9]+)?-alpha$",
            "--format",
            f'{{{{.Names}}}} {{{{.Label "{FOLDER_LABEL}"}}}}',
        )
        ended = subprocess.run(["docker", "ps", *words], capture_output=True, text=True, check=True, timeout=60)
        found = [line.split() for line in ended.stdout.splitlines()]
        made = [Prepared(name, Path(folder).parents[2] / "Data") for name, folder in found]
        return next((one for one in made if (one.data / "manifest.json").exists()), None)

    def hand_on(self, folder: Path, names: Sequence[str]) -> None:
        """Data for this folder, and disks with the images for machines that `orch lab up` will make there."""
        shutil.copytree(self.data, folder / "Data")
        for name in names:
            marks = {LABEL: LAB, FOLDER_LABEL: folder / "state" / "orch" / "lab", NODE_LABEL: name}
            words = [word for mark, value in marks.items() for word in ("--label", f"{mark}={value}")]
            subprocess.run(
                ["docker", "volume", "create", *words, f"orch-{LAB}-{name}"],
                check=True,
                capture_output=True,
                timeout=60,
            )
        link_images(self.machine, names)


@contextmanager
def a_lab(folder: Path, nodes: int, figure: Callable[[str], None]) -> Iterator[Orch]:
    """A lab with all that a launch needs, its state in this folder."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "LANG": "C.UTF-8",
    }
    environment.pop("ORCH_INVENTORY", None)
    command = Orch(folder, environment)

    def make(*words: str) -> Done:
        done = command(*words, timeout_s=1500)
        assert done.code == 0, done.err
        figure(f"orch {' '.join(words[:2])}: {done.seconds:.0f} s")
        return done

    # A test run that was killed leaves its lab, which would be refused as another folder's.
    make("lab", "down", "--yes", "--name", LAB)
    try:
        with only_builder():
            names, up = NAMES[:nodes], ("lab", "up", "--nodes", str(nodes), "--name", LAB)
            if prepared := Prepared.find():
                prepared.hand_on(folder, names)
                make(*up)
            else:
                make(*up)
                make("build", "--profile", "cpu", "--yes", "--nodes", names[0])
                if others := names[1:]:
                    make("lab", "kill", *others)
                    link_images(f"orch-{LAB}-{names[0]}", others)
                    make("lab", "start", *others)
                make("prepare", "--vocab-size", "2048")
        yield command
    finally:
        command("lab", "down", "--yes")
