"""Commands of README, guides and findings: each is run, or has a reason beside it: on a lab of two processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import NEEDS_TORCH, Figure
from tests.documents.lines import DOCUMENTS, ROOT, Line, lines_of

ORCH = (sys.executable, "-m", "orchestrator")
EVERY = {str(path.relative_to(ROOT)): lines_of(path) for path in DOCUMENTS}
FIRST = ("docs/tutorials/lab.md", "docs/tutorials/two-machines.md", "docs/tutorials/own-script.md")
"""Documents whose runs the others look at."""
OWN_FOLDER = {f"docs/{name}.md": name for name in ("custom", "inventory", "text", "traces", "trainer", "vision")}
"""Documents whose lines run in a folder of their own; those of all others share one."""

TINY = "gpt2 --preset tiny --no-amp --batch-size 2"
GPT2 = "--preset tiny --max-steps 4 --no-amp --batch-size 2 --sync fp32 --shares equal"
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ()),
    (r"orch plan", (f"orch bench --nodes 1 -- {TINY}",)),
    (
        r"orch predict",
        (
            "cd vision && orch launch --yes --nodes 1 --name shapes -- vision --preset tiny --max-steps 2",
            "cd text && orch launch --yes --nodes 1 --name texts -- text --max-steps 2",
        ),
    ),
    (
        r"orch (exec|supervise|adopt|shell|logs -f|monitor$|status --watch)",
        ("orch launch --yes --name long --detach --workdir mine -- python train.py --seconds 900",),
    ),
    (r"orch restart", ()),
    (r"orch stop", ()),
    (r"orch resume", ()),
    (r"orch (clean|data rm|uninstall)", ()),
    (r"orch lab down", ()),
    (r"orch uninstall( --yes)?$", ()),
)
"""Lines by their start, in the order in which they run: those that look at what a run has made, those that need a run
under way, those that end it, those that continue it, those that remove what others need. Own lines come before."""

SHORTER = {
    "the Spanish tutorials are twins of the English ones: what has run is not run again": (
        (r"\bprimera\b", "first"), (r"\brota\b", "broken"), (r"\bcasa\b", "home"), (r"\bcurva\b", "curve"),
        (r"\bajuste\b", "fit"), (r"\bmisdatos\b", "mydata"), (r"\bmodelo\.", "model."),
    ),
    "the lab has two nodes, which are processes": (
        (r"\bbeta,gamma\b|\bgamma,delta\b", "alpha,beta"),
        (r"\bdelta,epsilon\b|\bgamma\b", "beta"),
        (r"(?<!list )--nodes [35]\b", "--nodes 2"),
        (r"--min-nodes 3\b", "--min-nodes 2"),
        (r"--rank 3\b", "--rank 1"),
        (r"^orch lab up( --nodes 2| --engine process)?$", "orch lab up --engine process --nodes 2"),
        (r"\bPEER\b", "127.0.0.1"),
        (r"/media/usb", "usb"),
        (r"/workspace/runs/", "$XDG_STATE_HOME/orch/lab/nodes/alpha/lab/runs/"),
    ),
    "the words stand for a run, its data or its checkpoint": (
        (r"\bRUN1 RUN2\b|\bRUN OTHER\b", "first home"),
        (r"^(orch (?:exec|adopt|supervise|restart)) RUN\b", r"\1 long"),
        (r"^orch launch -- gpt2 --preset mini", "orch launch --name home -- gpt2 --preset mini"),
        (r"^orch launch (?=--data ./data -- python)", "orch launch --name script "),
        (r"^orch tensorboard$", "orch tensorboard RUN --port 6006"),
        (r"^orch pull RUN (?=output)", "orch pull script "),
        (r"^orch stop RUN$", "orch stop curve"),
        (r"^orch stop RUN --timeout 120", "orch stop home --timeout 120"),
        (r"^orch stop RUN --timeout 0", "orch stop script --timeout 0"),
        (r"^orch predict (?:RUN )?(?=cat|pictures)", "orch predict shapes "),
        (r"^orch predict RUN (?=texts)", "orch predict texts "),
        (r"\bRUN\b", "first"),
        (r"--step 300\b", "--step 4"),
        (r"\b8779f2bd\b", "$(orch data ls -o name | head -n 1)"),
        (r"\bFOLDER\b|holiday/", "../photos"),
    ),
    "Debian's package index and a site of pictures are not asked": (
        (r"--text spanish\b", "--text texts"),
        (r"^orch prepare(?: --vocab-size \d+)?$", "orch prepare --text texts --vocab-size 512"),
        (r"--images fashion-mnist\b", "--images ../photos"),
    ),
    "two cores train in seconds, not in minutes": (
        (r"-- gpt2 --preset (?:mini|lab)(?: --max-steps \d+)?", f"-- gpt2 {GPT2}"),
        (r"^(python -m trainer vision.*) --preset small", r"\1"),
        (r"^(python -m trainer (?:vision|gpt2) --.*?)(?: --preset lab)?$", r"\1 --preset tiny"),
        (r"^(python -m trainer (?:gpt2|vision|text|custom|traces-\w+) --.*)", r"\1 --max-steps 2 --batch-size 4"),
        (r"--record-own 3000", "--record-own 400"),
        (r"--tokens 200|--vocab-size 32000", lambda found: found[0][:-2]),
        (r"--interval 5\b", "--interval 1"),
        (r"random:small", "random:tiny"),
    ),
    "one measurement of one node serves all plans, and one attempt of each kind all others": (
        (r"^orch bench.*", f"orch bench --nodes 1 -- {TINY}"),
        (r"^orch plan(?: --measure)?(.*?)(?: --nodes 2)? -- .*", f"orch plan --nodes 1\\1 -- {TINY}"),
        (r"--nodes auto -- .*", f"--nodes 1 -- {TINY}"),
        (r"^orch test.*", "orch test"),
        (r"^orch restart.*", "orch restart long --detach"),
        (r"^orch resume.*", f"orch resume first -- gpt2 {GPT2} --max-steps 6"),
    ),
    "each kind of data has its folder": (
        (r"^orch prepare -- (vision|text) (.*) \./", r"mkdir -p \1 && cd \1 && orch prepare -- \1 \2 ../"),
        (r"^orch prepare (--text ./books .*)", r"orch prepare --data other \1"),
    ),
    "no person is there to answer": (
        (r"^(orch (?:launch|resume|restart|lab down|uninstall)\b(?!.*--(?:yes|dry-run)))", r"\1 --yes"),
        (r"^(orch (?:data rm|data repair|checkpoints prune)\b(?!.*--yes))", r"\1 --yes"),
        (r"^(orch doctor .*--fix)$", r"\1 --yes"),
        (r"^(orch monitor --json)(?= \|)", r"\1 --once"),
        (r"(orch exec long .*)-- ls -l output$", r"\1-- ls -l"),  # it has just started
    ),
    "the file is there by an earlier line": (
        (r"^(orch checkpoints export .*)", r"rm -f model.safetensors; \1"),
        (r"^(orch inventory import .* (?:-o|--output) .*)", r"\1 --force"),
    ),
    "one run of each kind is enough; of the others all is checked but their start": (
        (r"^orch launch --yes (?=.*--detach|--data \.\./mydata|.*--resume|.*custom)", "orch launch --dry-run "),
        (r"^orch launch (.*)--yes --detach", r"orch launch --dry-run \1"),
        (r"^(orch runs rerun first(?: -n alpha,beta --detach)?)$", r"\1 --dry-run"),
    ),
}  # fmt: skip
"""Commands to run instead of the shown ones, by the reason: patterns and replacements, in this order."""
STATE = "$(ls $XDG_STATE_HOME/orch/lab/nodes/beta/lab/runs/first-*/checkpoints/*/state.pt)"
BEFORE = {
    ("docs/inventory.md", "orch inventory list --nodes 6"): f"cp {ROOT}/inventory.yaml .",
    ("docs/inventory.md", "orch inventory validate"): "cp ../wrong.yaml inventory.yaml",
    (
        "docs/results.md",
        "orch checkpoints verify first",
    ): f"cp {STATE} intact; printf overwritten | dd conv=notrunc of={STATE}",
    ("docs/results.md", "orch checkpoints pull first --to kept"): f"cp intact {STATE}",
}
"""Actions before a line of a document."""
UNTIL_CTRL_C = {
    r"orch logs .*-f|orch monitor( |$)(?!.*--once)|orch status --watch|orch (supervise|adopt)": "",
    r"orch (dashboard|tensorboard)": "http",
    r"orch metrics --listen": "metrics",
    r"python -m trainer monitor": "CPU",
}
"""Commands that run until Ctrl-C, and what they print before it."""


def words_of(line: Line) -> str:
    return re.split(r"\s+#", line.command)[0]


def shortened(line: Line) -> str:
    command = words_of(line)
    for pattern, text in (pair for pairs in SHORTER.values() for pair in pairs):
        command = re.sub(pattern, text, command)
    if line.document.startswith(("docs/findings", "docs/reference")) and command.startswith("orch launch"):
        command = re.sub("--yes", "--dry-run", command)
    return command


def in_order() -> Iterator[Line | str]:
    """Lines that run, by the part that they belong to and by document; each part's own lines before it."""
    names = sorted(EVERY, key=lambda name: (name not in FIRST, name.startswith("docs/reference"), name))
    lines = [line for name in names for line in EVERY[name] if not line.reason]
    parts = {
        id(line): max(n for n, (start, _) in enumerate(PARTS) if re.match(start, shortened(line))) for line in lines
    }
    for number, (_, before) in enumerate(PARTS):
        yield from before
        yield from (line for line in lines if parts[id(line)] == number)


def place_of(line: Line | str, folder: Path) -> Path:
    """The folder in which a line runs."""
    if isinstance(line, str):
        return folder
    own = OWN_FOLDER.get(line.document, "inventory" if line.command.startswith("orch inventory import") else "")
    return folder / own


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that documents name, a lab of two processes, and no Docker Engine in reach."""
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    here = tmp_path / "here"
    write_files(here, tmp_path / "home")
    monkeypatch.chdir(here)
    subprocess.run((*ORCH, "lab", "up", "--engine", "process", "--nodes", "2"), check=True)
    lab = (tmp_path / "state/orch/lab/inventory.yaml").read_text("utf-8")
    (here / "inventory.yaml").write_text(lab.replace("defaults:\n", "defaults:\n  labels: {room: lab}\n"))
    yield here
    subprocess.run((*ORCH, "lab", "down", "--yes"), check=False)  # exit code 4: a line has done so already


@pytest.fixture
def shell() -> Iterator[Shell]:
    one = Shell()
    yield one
    one.close()


OWN_SCRIPT = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr")
parser.add_argument("--seconds", type=float, default=0)
print("rank", os.environ["RANK"])
for name in ("output/model.pt", "logs/loss.csv"):
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).write_text("0.1")
time.sleep(parser.parse_args().seconds)
"""
WRONG = """nodes:
  alpha:
    address: "fe80::1"
  beta:
    address: 192.168.1.50
    prot: 22
    limits: {memory: 4096}
  gamma: {address: 192.168.1.51}
  delta: {address: 192.168.1.51}
  worker[01-05]: {address: "192.168.1.[52-55]"}
"""
HOSTS = "all: {children: {gpu: {hosts: {alpha: {ansible_host: 192.168.1.50}, beta: {ansible_host: 192.168.1.51}}}}}\n"
POOLS = "lan: {user: ana, hosts: [192.168.1.50, 192.168.1.51]}\n"
EVENTS = (
    '{"id": "a", "events": ["get", "query", "send"], "parents": [-1, 0, 0], "features": {"duration_us": [9, 5, 1]}}\n'
)


def python_of(document: str) -> str:
    """The first block of Python that a document shows."""
    found = re.search(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.S)
    assert found
    return found[1]


def write_files(here: Path, home: Path) -> None:
    """The files that documents name."""
    labels = ("a", "b", "c", "d")
    rows = "".join(f"falla {n} en la bomba,{labels[n % 2]},{labels[n % 4]},{labels[n % 3]}\n" for n in range(80))
    sentences = "".join(f"En el principio, a las {number}, era el verbo.\n" for number in range(2000))
    texts = {
        "curve/fit.py": python_of("docs/tutorials/own-script.md"),
        "custom/digits.py": python_of("docs/custom.md"),
        "custom/mine/digits.py": python_of("docs/custom.md"),
        "mine/train.py": OWN_SCRIPT,
        "train.py": OWN_SCRIPT,
        "texts/a.txt": sentences,
        "trainer/texts/a.txt": sentences,
        "books/a.txt": sentences,
        "articles.txt": sentences,
        "data/train.csv": "1,2\n",
        "../mydata/train.csv": "1,2\n",
        "../more/train.csv": "1,2\n",
        "failures.csv": "descripcion,modo,causa,prioridad\n" + rows,
        "texts.csv": "descripcion\nfalla en la bomba\n",
        "text/new.csv": "descripcion\nfalla en la bomba\n",
        "traces/new.jsonl": EVENTS,
        "prompt.txt": "En el principio",
        "requirements.txt": "",
        "wrong.yaml": WRONG,
        "lab.yaml": "nodes: {alpha: {address: 192.168.1.50}}\n",
        "inventory/hosts.yml": HOSTS,
        "inventory/hostfile": "192.168.1.50 slots=2\n192.168.1.51 slots=2\n",
    }
    at_home = {
        ".ssh/config": "Host lab-1\n  HostName 192.168.1.50\n  User ana\n",
        ".sky/ssh_node_pools.yaml": POOLS,
        "orch/README": "",
    }
    for folder, files in ((here, texts), (home, at_home)):
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    images = import_module("PIL.Image")
    for name in ("photos/{}/{}.png", "cat.jpg", "dog.jpg", "pictures/a.png"):
        for number in range(20 if "{" in name else 1):
            for kind, color in {"sky": (0, 0, 200 + number), "wood": (100 + number, 50, 0)}.items():
                path = here / name.format(kind, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                images.new("RGB", (32, 32), color).save(path)


class Shell:
    """Runner of the lines: a shell, or a process that has imported the program, for lines that need no shell."""

    def __init__(self) -> None:
        self._warm: dict[str, subprocess.Popen[str]] = {}

    def run(self, command: str, folder: Path) -> tuple[int, str]:
        """Run one line in a folder: its exit code and its output."""
        for pattern, wanted in UNTIL_CTRL_C.items():
            if re.match(pattern, command):
                return interrupted(command, wanted)
        if program := re.match(r"(?:orch|python -m trainer) (?!.*[$`|&;<>*?~#(){}\\])", command):
            module = "trainer" if "trainer" in program[0] else "orchestrator"
            return self._ask(module, shlex.split(command[program.end() :]), folder)
        argv = ["bash", "-c", command]
        ended = subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return ended.returncode, ended.stdout

    def _ask(self, module: str, words: list[str], folder: Path) -> tuple[int, str]:
        if module not in self._warm:
            argv = (sys.executable, "-m", "tests.documents.warm", module)
            self._warm[module] = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        process = self._warm[module]
        assert process.stdin
        assert process.stdout
        print(json.dumps([str(folder), *words]), file=process.stdin, flush=True)
        code, output = json.loads(process.stdout.readline())
        return code, output

    def close(self) -> None:
        for process in self._warm.values():
            process.communicate()


def interrupted(command: str, wanted: str) -> tuple[int, str]:
    """Run a line until it has printed `wanted`, and press Ctrl-C."""
    with subprocess.Popen(
        shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        seen, until = "", time.monotonic() + 60
        for line in process.stdout:
            seen += line
            if wanted in line or time.monotonic() > until:
                break
        process.send_signal(signal.SIGINT)
        seen += process.stdout.read()
    return process.returncode if process.returncode != 130 else 0, seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
@NEEDS_TORCH
def test_lines_run_as_their_documents_show(folder: Path, shell: Shell, figure: Figure) -> None:
    """All in one test, as runs that first lines make are what later ones look at. Each line is printed as it ends."""
    failed, done = [], set[tuple[str, bool]]()
    for line in in_order():
        document, fails = ("", False) if isinstance(line, str) else (line.document, line.fails)
        command = line if isinstance(line, str) else shortened(line)
        place = place_of(line, folder)
        if (key := (f"{place}: {command}", fails)) in done:
            continue
        done.add(key)
        place.mkdir(exist_ok=True)
        if isinstance(line, Line) and (before := BEFORE.get((document, words_of(line)))):
            subprocess.run(["bash", "-c", before], cwd=place, check=True, capture_output=True)
        began = time.monotonic()
        code, output = shell.run(command, place)
        sys.stdout.write(f"{code} {time.monotonic() - began:5.1f} s  {document}: {command}\n")
        if (code != 0) != fails or (isinstance(line, Line) and not shows(line, output)):
            failed.append(f"{document}: {command}\nexit code {code}: {output[-600:]}")
    figure(f"command lines of the documents: {len(done)} run")
    assert not failed, "\n\n".join(failed)


def shows(line: Line, output: str) -> bool:
    """Return whether errors that a document shows are printed, but for their numbers."""
    printed = re.sub(r"\d+", "N", output)
    return all(re.sub(r"\d+", "N", shown) in printed for shown in line.shown if shown.startswith("error: "))
