"""README, guides and decisions name only commands, options, files, functions, tests and headings that exist."""

from __future__ import annotations

import argparse
import ast
import os
import re
import runpy
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import COMMANDS
from orchestrator.state.phase import Phase
from tests.documents.lines import lines_of
from tests.each_case import failures_of
from tests.unit.programs import MISSING, program_of, refusal_of, words_of
from trainer.agent.options import build_parser as agent_parser
from trainer.cli import TOOLS, build_parser, parse
from trainer.workloads import WORKLOADS

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", ".github/**/*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
PACKAGES = ("contract", "orchestrator", "trainer")
FOLDERS = {
    path.name: path.parent
    for path in (*ROOT.iterdir(), *ROOT.glob("orchestrator/*"), *ROOT.glob("trainer/*"))
    if path.is_dir() and path.name != "Data"
}
"""Parents by folder: documents name modules of both sides from their package on (`engine/loop.py`). `Data` is the
user's."""
NO_PATH = {"lab/mine"}
"""The name of an image."""
FOREIGN = {
    "--config-settings",
    "--no-build-isolation",
    "--kill-on-bad-exit",
    "--logs-specs",
    "--permanent",
    "--preserve-env",
    "--privileged",
    "--runtime",
    "--tmpfs",
    "--trusted-host",
}
"""Options of pip, srun, torchrun, firewall-cmd, sudo and docker run."""
PATH = re.compile(r"(?<![\w./~$-])((?:[\w-]+/)+[\w.-]*\w/?)(?::((?:\w+)(?:\.\w+)*(?:, \w+(?:\.\w+)*(?![\w./]))*))?")


VALUES = {"N": "2", "PORT": "8080", "FD": "3", "S": "1", "SECONDS": "1"}
"""Values for the words that stand for one."""
SHOWN = {"alpha", "beta", "gamma", "delta", "worker", "first", "primera", "checkpoint", *Phase}
"""Values in shown output: names of nodes and runs, what is counted, phases."""


NAMED_TEST = re.compile(r"`test_\w+\.py(::test_\w+)?`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def commands(path: Path) -> Iterator[str]:
    return (line.command for line in lines_of(path))


def code(path: Path) -> Iterator[str]:
    """Lines of code blocks, fenced or indented, with continued ones joined; and words in backticks."""
    text = path.read_text("utf-8")
    for block in re.findall(r"^```\w*\n(.*?)^```|((?:^    .*\n)+)", text, re.M | re.S):
        yield from (line.strip().removeprefix("$ ") for line in "".join(block).replace("\\\n", "").splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def program(command: str) -> Any:
    return program_of(command).commands[command]


@cache
def lines(start: str) -> dict[str, list[str]]:
    """Documents with their lines that begin so."""
    found = {name_of(path): sorted({line.partition("  #")[0] for line in code(path)}) for path in DOCUMENTS}
    found = {document: [line for line in lines if line.startswith(start)] for document, lines in found.items()}
    return {document: lines for document, lines in found.items() if lines}


@pytest.mark.parametrize("document", lines("orch "))
def test_orch_commands_exist_with_their_options(document: str) -> None:
    assert failures_of(check_orch, lines("orch ")[document]) == []


def test_commands_of_blocks_are_complete() -> None:
    """A block is there to be pasted; in a text, an argument may be missing."""
    every = [line for path in DOCUMENTS for line in commands(path) if line.startswith("orch ")]
    assert len(every) > 250

    def check(line: str) -> None:
        given = words_of(line.partition("  #")[0])[1:]
        assert not given or given[0].startswith("-") or refusal_of([VALUES.get(word, word) for word in given]) == ""

    assert failures_of(check, every) == []


def test_output_that_is_shown_is_of_today() -> None:
    """Each two words that follow each other are in a text of ours, unless one of them is a value."""
    foreign = []
    for document, line in output():
        pairs = re.findall(r"(?<![\w/.-])([a-z]{2,}) (?=([a-z]{2,})(?![\w/.-]))", line)
        foreign += [f"{document}: {a} {b}" for a, b in pairs if not {a, b} & SHOWN and f"{a} {b}" not in texts()]
    assert foreign == []


def output() -> Iterator[tuple[str, str]]:
    """Yield what blocks show as printed by `orch`, but for a text that a model has written."""
    for path in DOCUMENTS:
        for language, block in BLOCK.findall(path.read_text("utf-8")):
            command = ""
            for line in block.splitlines() if language == "console" else ():
                command = line if line.startswith("$ ") else command
                if command.startswith("$ orch ") and line is not command and "sample: " not in line:
                    yield name_of(path), line


@cache
def texts() -> str:
    """Every string of the packages, and the texts of causes and findings."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    strings += [file.read_text("utf-8") for file in (*ROOT.glob("docs/causes/*.md"), *ROOT.glob("docs/findings/*.md"))]
    return re.sub(r"\s+", " ", " | ".join(strings))


def test_the_readme_is_short() -> None:
    """Lines that a reader sees; a comment is a mark for the tests of the commands."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("<!--")]) <= 80


def test_the_documents_are_few() -> None:
    """A new page is read by more people as a section of one that they know."""
    assert len([path for path in ROOT.glob("docs/**/*") if path.is_file()]) <= 120


def test_modules_that_commands_run_exist() -> None:
    every = {line for path in DOCUMENTS for line in (*commands(path), *code(path)) if "python -m " in line}
    modules = {found[1] for line in every if (found := re.search(r"python -m ([\w.]+)", line))}
    assert len(modules) > 10
    assert [name for name in sorted(modules) if name.isidentifier() and not find_spec(name)] == []
    ours = [name.replace(".", "/") for name in modules if name.partition(".")[0] in FOLDERS]
    places = [ROOT / name for name in ours if name not in NO_PATH]
    assert [str(one) for one in places if not (one.is_dir() or one.with_suffix(".py").is_file())] == []


def check_orch(line: str) -> None:
    given = words_of(line)[1:]
    if given[0].startswith("-"):
        assert given[0] in ("--help", "--version", "-h", "--install-completion")
        return
    assert given[0] in COMMANDS
    if "OPTIONS" in given:  # the usage of a command
        return
    assert refusal_of([VALUES.get(word, word) for word in given]) in ("", MISSING)
    workload = given[given.index("--") + 1 :] if "--" in given else []
    if workload and workload[0] in WORKLOADS:
        understood([workload[0], *["prepare"] * (given[0] == "prepare"), *workload[1:]])


@pytest.mark.parametrize("document", lines("python -m trainer "))
def test_trainer_commands_exist_with_their_options(document: str) -> None:
    assert failures_of(check_trainer, lines("python -m trainer ")[document]) == []


def check_trainer(line: str) -> None:
    rest = words_of(line)[3:]
    if rest[0] != "WORKLOAD":
        understood(rest)


def understood(given: list[str]) -> None:
    """A command alone stands for all its uses, and need not be complete."""
    if len(given) == 1:
        assert given[0] in (*WORKLOADS, *TOOLS)
    elif given[-1] not in ("…", "--help"):
        parse(given)


def paths(text: str) -> Iterator[tuple[str, str]]:
    """Each path below a folder of the repository or of a package, and the names that follow it after a colon."""
    for path, names in PATH.findall(text):
        if path.partition("/")[0] in FOLDERS and path not in NO_PATH and not re.search(r"[A-Z]{2}", path):
            yield path, names


def test_paths_exist_with_the_functions_named_in_them() -> None:
    missing = []
    for document in DOCUMENTS:
        for path, names in paths(document.read_text("utf-8")):
            where = FOLDERS[path.partition("/")[0]] / path
            files = [where] if where.exists() else list(where.parent.glob(f"{where.name}*"))
            if not files:
                missing.append(f"{name_of(document)}: {path}")
            elif names and where.suffix == ".py":
                known = defined(where)
                missing += [f"{name_of(document)}: {path}:{name}" for name in names.split(", ") if name not in known]
    assert missing == []


def test_tests_named_in_documents_exist() -> None:
    functions: dict[str, set[str]] = {}
    for path in ROOT.glob("tests/**/test_*.py"):
        functions.setdefault(path.name, set()).update(defined(path))
    named = [
        (name_of(document), file, name)
        for document in DOCUMENTS
        for file, names in re.findall(r"\b(test_\w+\.py)((?:(?:, )?::test_\w+)*)", document.read_text("utf-8"))
        for name in re.findall(r"test_\w+", names) or [""]
        if file not in ("test_ddp.py", "test_iterable_dataset.py")  # scripts of the original guides
    ]
    assert len(named) > 200
    assert [one for one in named if one[1] not in functions or (one[2] and one[2] not in functions[one[1]])] == []


def test_each_promise_of_security_names_its_test() -> None:
    """Check the document itself: that its tests exist is checked with those of all documents."""
    table = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Promises")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 12
    assert [row for row in rows if not NAMED_TEST.search(row.rsplit(" | ", 1)[1])] == []


def test_each_invariant_of_the_architecture_names_its_test() -> None:
    """A section for each part, with its invariants as a list."""
    _, *sections = re.split(r"^## ", (ROOT / "docs/architecture.md").read_text("utf-8"), flags=re.M)
    invariants = {section.splitlines()[0]: re.findall(r"^- (.+)$", section, re.M) for section in sections}
    assert [title for title, lines in invariants.items() if len(lines) < 2] == []
    assert [line for lines in invariants.values() for line in lines if not NAMED_TEST.search(line)] == []


def test_options_named_alone_exist() -> None:
    """Options of any command of ours: orch, the trainer, scripts and benchmarks."""
    known = set(FOREIGN)
    for command in COMMANDS:
        for each in (program(command), *getattr(program(command), "commands", {}).values()):
            known |= {option for parameter in each.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for workload in WORKLOADS:
        known |= options(build_parser(workload))
    known |= options(agent_parser({}))
    for file in (ROOT / "scripts/test", ROOT / "scripts/quickstart", *ROOT.glob("benchmarks/**/*.py"),
                 *ROOT.glob("examples/*/train.py")):  # fmt: skip
        known |= set(re.findall(r"--[a-z][a-z-]+", file.read_text("utf-8")))
    unknown = {
        f"{name_of(document)}: {option}"
        for document in DOCUMENTS
        for line in code(document)
        if line.startswith("--")
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*\w(?![\w-])", line)
        if option not in known
    }
    assert unknown == set()


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Those of a parser and of the commands below it."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*(options(inner) for inner in action.choices.values()))
    return found


@cache
def defined(path: Path) -> set[str]:
    """Functions, classes and constants of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{inner.name}" for inner in body if isinstance(inner, ast.FunctionDef))}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def test_decisions_that_are_named_exist_and_have_a_status() -> None:
    decisions = {int(path.name[:4]): path.read_text("utf-8") for path in ROOT.glob("docs/adr/0*.md")}
    status = runpy.run_path(str(ROOT / "scripts" / "docs.py"))["STATUS"]
    bodies = {number: text.removeprefix(f"# {number}. ").partition("\n\n")[2] for number, text in decisions.items()}
    assert [number for number, text in bodies.items() if not status.match(text)] == []
    sources = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    unknown = {
        f"{name_of(file)}: {number}"
        for file in (*DOCUMENTS, *sources)
        for number in re.findall(r"\bADR\s(\d+)|docs/adr/(\d{4})", file.read_text("utf-8"))
        if int("".join(number)) not in decisions
    }
    assert unknown == set()


def test_links_lead_to_files_and_headings() -> None:
    missing = [
        f"{name_of(document)}: {link}"
        for document in DOCUMENTS
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)", document.read_text("utf-8"))
        if not leads(document, *link.partition("#")[::2])
    ]
    assert missing == []


def leads(document: Path, file: str, anchor: str) -> bool:
    target = document.parent / file if file else document
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(document: Path) -> set[str]:
    """Make anchors of headings as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["lab.md", "laboratorio.md"])
def test_the_line_that_kills_a_rank_kills_that_of_its_run_alone(page: str) -> None:
    """A machine has ranks of other runs, where nodes are processes."""
    text = (ROOT / "docs/tutorials" / page).read_text()
    (script,) = re.findall(r"^orch exec \S+ --rank 1 -- sh -c '(.*)'$", text, re.M)
    sleep, own, other = ["sleep", "60"], f"first-{os.getpid()}", f"other-{os.getpid()}"
    ranks = {
        (run, rank): subprocess.Popen(sleep, env={**os.environ, "ORCH_RUN_ID": run, "RANK": rank})
        for run in (other, own)
        for rank in ("0", "1")
    }
    try:
        in_run = {**os.environ, "ORCH_RUN_ID": own}
        done = subprocess.run(["sh", "-c", script], env=in_run, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ranks[own, "1"].wait(timeout=10) == -9
        assert [place for place, rank in ranks.items() if rank.poll() is not None] == [(own, "1")]
    finally:
        for rank in ranks.values():
            rank.kill()
            rank.wait()
