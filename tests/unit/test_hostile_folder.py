"""A cloned folder that means harm: no command that only looks runs anything of it.

Every command of the program is either in `LOOKS`, with the words that it is called with here, or in `ACTS`, with the
reason; a new command that is in neither fails the test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.consent import answering_by
from orchestrator.cli.launching.following import spawning_by
from orchestrator.fleet.connect import connecting_by
from tests import lan
from tests.unit.conftest import INVENTORY, THREE, Orch
from tests.unit.test_every_command import EVERY

ROOT = Path(__file__).parents[2]
LOOKS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "checkpoints ls": ("first",),
    "checkpoints verify": ("first",),
    "check-gpus": ("--no-container",),
    "dashboard": ("--port", "0"),
    "data ls": (),
    "docs": ("--print",),
    "doctor": (),
    "explain": ("clock.skew",),
    "export jobset": ("-n", "2", "--", "python", "train.py"),
    "firewall show": (),
    "inventory import": ("hosts.ini",),
    "inventory list": (),
    "inventory schema": (),
    "inventory show": (),
    "inventory validate": (),
    "lab status": (),
    "launch": ("--dry-run", "--data", "rows=data", "--", "python", "train.py"),
    "logs": ("first",),
    "metrics": ("--listen", "127.0.0.1:0"),
    "monitor": ("--once",),
    "plan": ("--", "gpt2"),
    "report": ("first", "--to", "/dev/null"),
    "resume": ("first", "--dry-run"),
    "runs": (),
    "runs diff": ("first", "second"),
    "runs rerun": ("first", "--dry-run"),
    "search": ("nan",),
    "setup": ("--dry-run",),
    "status": (),
    "tensorboard": ("first",),
    "trust": (),
    "uninstall": ("--dry-run",),
    "version": (),
    "wait": ("first", "--timeout", "1"),
    "why": ("first",),
}
"""Commands that change nothing, called so; without `--yes` and without a terminal `trust` only shows."""
ON_RUNS = "acts on the containers of a run, which the user launched"
COPIES = "copies files that the command line names"
LAB = "changes the lab, whose folder is orch's own"
ACTS = {
    "adopt": ON_RUNS, "exec": ON_RUNS, "restart": ON_RUNS, "stop": ON_RUNS, "supervise": ON_RUNS, "clean": ON_RUNS,
    "checkpoints export": COPIES, "checkpoints pull": COPIES, "checkpoints push": COPIES, "pull": COPIES,
    "checkpoints prune": "removes checkpoints", "data rm": "removes data", "data repair": "replaces data",
    "bench": "measures in containers of its own", "test": "measures in containers of its own",
    "evaluate": "runs a model in a container", "predict": "runs a model in a container",
    "sample": "runs a model in a container", "prepare": "makes data in a container",
    "build": "builds an image", "init": "writes an inventory and copies a key", "shell": "opens a shell",
    "firewall apply": "changes rules of the nodes", "firewall remove": "changes rules of the nodes",
    "lab cut": LAB, "lab down": LAB, "lab heal": LAB, "lab kill": LAB, "lab link": LAB, "lab shell": LAB,
    "lab start": LAB, "lab up": LAB,
}  # fmt: skip
SERVE = ("dashboard", "metrics", "tensorboard")
"""Commands that answer requests until Ctrl-C."""
MODULES = (
    "conftest", "docker", "fabric", "http", "json", "orchestrator", "orch_hooks", "paramiko", "pydantic", "rich",
    "ruamel", "setup", "sitecustomize", "socket", "subprocess", "torch", "trainer", "typer", "usercustomize", "yaml",
)  # fmt: skip
"""Files beside the script that Python would import in place of others, some as packages."""
INI = (
    "[all]\nalpha ansible_host=127.0.0.1 ansible_connection=local note=\"{{ lookup('pipe', 'touch MARKS/lookup') }}\"\n"
)
PLUGIN = """\
from pathlib import Path; Path("MARKS/ansible-plugin").touch()
from ansible.plugins.inventory import BaseInventoryPlugin
DOCUMENTATION = "name: x\\nplugin_type: inventory\\nshort_description: x\\noptions: {}\\n"
class InventoryModule(BaseInventoryPlugin):
    NAME = "x"
    def verify_file(self, path): return False
"""


DIVIDING = """\
import json, os, sys, tempfile
import docker, fabric, pydantic, rich.table, ruamel.yaml
from orchestrator.cli import main
from orchestrator.specs.inventory_files import inventory_file
for line in sys.stdin:
    with tempfile.TemporaryFile() as out:
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = main(json.loads(line))
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        print(json.dumps([code, out.read().decode()]), flush=True)
"""


@dataclass(frozen=True)
class Cloned:
    """The folder, and the folder in which everything of it that is run leaves a file."""

    folder: Path
    marks: Path
    environment: dict[str, str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A program in the folder, with the user's environment."""
        return subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=240, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def serve(self, *words: str) -> tuple[int, str]:
        """`orch` as its own script starts it, and its end by Ctrl-C once it serves."""
        argv = [str(Path(sys.executable).with_name("orch")), *words]
        with subprocess.Popen(
            argv, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            message = ""
            for line in process.stdout:
                message += line
                if "http://" in line:
                    process.send_signal(signal.SIGINT)
            return process.wait(60), message

    def looked(self) -> Iterator[tuple[str, int, str, set[str]]]:
        """Each command of `LOOKS` that ends by itself: its exit code, its output, and what has been run of the folder.

        One process imports the program and divides itself for each of them, as each is a process of its own.
        """
        file = self.folder.parent / "bin" / "looks.py"  # beside it, as `orch` is beside nothing of the folder
        file.write_text(DIVIDING)
        with subprocess.Popen(
            [sys.executable, str(file)], cwd=self.folder, env=self.environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            for command in LOOKS:
                if command not in SERVE:
                    process.stdin.write(json.dumps([*command.split(), *LOOKS[command]]) + "\n")
                    process.stdin.flush()
                    code, text = json.loads(process.stdout.readline())
                    yield command, code, text, self.ran()

    def ran(self) -> set[str]:
        """Return what has been run since the last look."""
        names = {file.name for file in self.marks.iterdir()}
        for file in self.marks.iterdir():
            file.unlink()
        return names


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Cloned:
    root = tmp_path_factory.mktemp("cloned")
    folders = {name: root / name for name in ("home", "state", "config", "cache", "bin", "marks", "folder", "own")}
    for folder in folders.values():
        folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "GIT_"))}
    environment |= {f"XDG_{name.upper()}_HOME": str(folders[name]) for name in ("state", "config", "cache")}
    environment |= {"HOME": str(folders["home"]), "PATH": f"{folders['bin']}:{os.environ['PATH']}"}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    made = Cloned(folders["folder"], folders["marks"], environment)
    script(folders["bin"] / "ansible-inventory", f"touch {made.marks}/ansible-inventory; echo '{{}}'")
    launched_before(folders["own"], made)
    fill(made)
    return made


def launched_before(folder: Path, made: Cloned) -> None:
    """Two runs on record, launched from a folder of the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        Path("inventory.yaml").write_text(INVENTORY)
        here = lan.lan(*THREE)
        for name in ("first", "second"):
            with answering_by(None), connecting_by(here.connect), spawning_by(lambda *_: None):
                assert main(["launch", "--yes", "--detach", "--name", name]) == 0


def script(file: Path, body: str) -> None:
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def fill(made: Cloned) -> None:
    """All that tools of the field run of a folder. The inventory is a script at the same time, as its x bit says."""
    folder, marks = made.folder, made.marks
    nodes = "".join(
        f"  {name}: {{address: 127.0.0.{11 + at}, connection: local, engine: process}}\n"
        for at, name in enumerate(THREE)
    )
    script(folder / "inventory.yaml", f'nodes:\n{nodes}hooks:\n  ended: "$(touch {marks}/inventory)"')
    (folder / "hosts.ini").write_text(INI.replace("MARKS", str(marks)))
    (folder / "ansible.cfg").write_text("[defaults]\ninventory_plugins=./p\n[inventory]\nenable_plugins=ini,x\n")
    (folder / "p").mkdir()
    (folder / "p" / "x.py").write_text(PLUGIN.replace("MARKS", str(marks)))
    for name in (*MODULES, "train", "backend"):
        (folder / f"{name}.py").write_text(f"from pathlib import Path; Path('{marks}/{name}').touch()\n")
    (folder / "evil.pth").write_text(f"import os; os.system('touch {marks}/pth')\n")
    (folder / "pyproject.toml").write_text('[build-system]\nrequires=[]\nbuild-backend="backend"\nbackend-path=["."]\n')
    (folder / "data").mkdir()
    (folder / "data" / "rows.csv").write_text("1,2\n")
    for name, text in (
        (".env", "PYTHONSTARTUP=train.py\nX=$(touch {})"), (".envrc", "touch {}"), ("Makefile", "all:\n\ttouch {}"),
        ("Dockerfile", "FROM scratch\nRUN touch {}"), ("requirements.txt", "# {}\n-e ."), (".orchignore", "# {}"),
    ):  # fmt: skip
        (folder / name).write_text(text.format(f"{marks}/{name}") + "\n")
    git(made)


def git(made: Cloned) -> None:
    """A repository whose configuration names programs."""
    assert made.run("git", "init", "-q").returncode == 0
    for name in ("fsmonitor", "filter", "textconv", "hook"):
        script(made.folder / ".git" / name, f"touch {made.marks}/git-{name}; cat")
    config = {
        "core.fsmonitor": "fsmonitor", "filter.x.clean": "filter", "filter.x.smudge": "filter",
        "diff.x.textconv": "textconv", "core.hooksPath": "hooks-of-it", "user.name": "x", "user.email": "x@example.org",
    }  # fmt: skip
    for key, value in config.items():
        named = value if key.startswith("user") else str(made.folder / ".git" / value)
        made.run("git", "config", key, named)
    hooks = made.folder / ".git" / "hooks-of-it"
    hooks.mkdir()
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        script(hooks / name, f"touch {made.marks}/git-hook")
    (made.folder / ".gitattributes").write_text("*.py filter=x diff=x\n")
    (made.folder / ".git" / "index").unlink(missing_ok=True)


def test_what_lies_in_wait_works(cloned: Cloned) -> None:
    """The other side: each of these runs as soon as the program that is meant for it is used."""
    cloned.run("./inventory.yaml")
    assert cloned.ran() == {"inventory"}
    cloned.run("ansible-inventory", "-i", "hosts.ini", "--list")
    assert cloned.ran() == {"ansible-inventory"}
    for name in MODULES:
        cloned.run(sys.executable, "-S", "-c", f"import sys; sys.modules.pop({name!r}, None); import {name}")
        assert name in cloned.ran()
    cloned.run("env", "PYTHONPATH=.", sys.executable, "-c", "import site; site.addsitedir('.')")
    assert cloned.ran() >= {"sitecustomize", "pth"}
    cloned.run("git", "add", "train.py")
    cloned.run("git", "diff", "--cached")
    cloned.run("git", "commit", "-q", "-m", "x")
    assert cloned.ran() == {"git-fsmonitor", "git-filter", "git-textconv", "git-hook"}
    cloned.run("sh", "-c", ". ./.env; . ./.envrc; make")
    assert cloned.ran() == {".env", ".envrc", "Makefile"}


@pytest.mark.source
def test_python_that_is_started_again_does_not_import_from_the_working_folder() -> None:
    """`-P`: `python -m` would put the caller's folder first. Only the process engine begins in a folder of its own."""
    sources = (ROOT / "orchestrator").glob("**/*.py")
    found = {str(file.relative_to(ROOT)): re.findall(r'sys\.executable, "(-\w)"', file.read_text()) for file in sources}
    assert {flag for flags in found.values() for flag in flags} == {"-P", "-I", "-m"}
    assert {file for file, flags in found.items() if "-m" in flags} == {
        "orchestrator/cli/launching/missing_modules.py",  # a line to paste
        "orchestrator/nodes/processes/command.py",
        "orchestrator/nodes/processes/engine.py",
    }


def test_every_command_either_looks_or_acts() -> None:
    assert sorted([*LOOKS, *ACTS]) == sorted(["", *EVERY])


@pytest.mark.timeout(600)
def test_no_command_that_looks_runs_anything_of_the_folder(cloned: Cloned) -> None:
    looked = list(cloned.looked())
    assert [command for command, *_ in looked] == [one for one in LOOKS if one not in SERVE]
    assert {command: names for command, _, _, names in looked if names} == {}
    wrong = [(command, code, text) for command, code, text, _ in looked if code not in range(6) or "Traceback" in text]
    assert wrong == []
    assert [command for command, code, *_ in looked if code == 2] == [""]  # all words above are understood


@pytest.mark.parametrize("command", SERVE)
def test_nor_does_one_that_serves(cloned: Cloned, command: str) -> None:
    code, text = cloned.serve(command, *LOOKS[command])
    assert (cloned.ran(), "Traceback" in text) == (set(), False), text
    assert code in (0, 3, 130), text


@pytest.fixture
def foreign(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloned]:
    """A folder whose inventories are another program's, in the process of the test."""
    folders = [tmp_path / name for name in ("marks", "bin")]
    for folder in folders:
        folder.mkdir()
    made = Cloned(Path.cwd(), folders[0], {})
    script(folders[1] / "ansible-inventory", f"touch {made.marks}/ansible-inventory; echo '{{}}'")
    monkeypatch.setenv("PATH", f"{folders[1]}:{os.environ['PATH']}")
    yield made
    assert made.ran() == set()


@pytest.mark.parametrize("command", [one for one in LOOKS if one not in SERVE])
def test_an_executable_inventory_is_only_read(orch: Orch, foreign: Cloned, command: str) -> None:
    script(Path("inventory.yaml"), f"touch {foreign.marks}/inventory\ncat <<'X'\n{{}}\nX\nexit 0\n[all]\na x=1")
    ran = orch(*command.split(), *LOOKS[command], on=lan.Lan(), says=None)
    assert ran.code in range(8)
    if command in ("inventory list", "doctor", "launch", "plan"):
        assert "inventory.yaml is a script (it begins with #!), and orch runs nothing of a folder" in ran.err
        line = "ansible-inventory -i inventory.yaml --list | orch inventory import - --output inventory.yaml"
        assert line in ran.err


@pytest.mark.parametrize("command", [one for one in LOOKS if one not in SERVE])
def test_plugins_of_an_ansible_cfg_are_not_loaded(orch: Orch, foreign: Cloned, command: str) -> None:
    Path("ansible.cfg").write_text("[defaults]\ninventory_plugins=./p\n")
    Path("hosts.ini").write_text(INI.replace("MARKS", str(foreign.marks)))
    words = ("-i", "hosts.ini", *command.split())
    assert orch(*words, *LOOKS[command], on=lan.lan("alpha"), says=None).code in range(8)
