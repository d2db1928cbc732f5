"""What the design promises of the house itself: its rooms, its sizes, and that its documents tell the truth."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from orchestrator.cli import COMMANDS, build_app
from orchestrator.specs import errors

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for name in ("contract", "orchestrator", "trainer") for path in ROOT.glob(f"{name}/**/*.py"))
DOCUMENTS = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/findings/*.md"), *ROOT.glob("docs/causes/*.md")]
)

MAY_BE_LONG = {"trainer/engine/loop.py:_loop": "the training loop is linear, to be read like an essay"}
TOUCH_DISTRIBUTED = {
    "trainer/engine/group.py",
    "trainer/engine/process_group.py",
    "trainer/engine/transfers.py",
    "trainer/engine/loop.py",
    "trainer/tools/test_ddp.py",
    "trainer/agent/logs_specs.py",
    "trainer/agent/torchrun.py",
}
"""`loop` and `test_ddp` for `record` alone, which writes torchrun's error file; `logs_specs` and `torchrun` for its own
seams."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), feature_version=(3, 10))


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_layers_are_kept() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    ran = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_contract_needs_the_standard_library_alone() -> None:
    imported = {
        name.split(".")[0]
        for path in (ROOT / "contract").rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported - sys.stdlib_module_names == {"contract"}


def test_the_median_file_is_small() -> None:
    sizes = [lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > 5]
    assert median(sizes) < 120


def test_classes_are_small() -> None:
    large = {
        f"{place(path)}:{node.name}": lines
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and (lines := (node.end_lineno or 0) - node.lineno + 1) >= 300
    }
    assert large == {}


def test_functions_are_short() -> None:
    """From the first statement on: the options of a command are its declaration."""
    long = {
        f"{place(path)}:{node.name}": lines
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and (lines := (node.end_lineno or 0) - node.body[0].lineno + 1) >= 50
    }
    assert set(long) == set(MAY_BE_LONG), long


def test_no_room_for_odds_and_ends() -> None:
    odd = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "handler"}
    assert [place(path) for path in SOURCES if odd & set(path.stem.split("_") + list(path.parts[-2:-1]))] == []


@pytest.mark.parametrize("folder", ["specs", "plan", "checks"])
def test_data_is_frozen_and_named(folder: str) -> None:
    """`Expected` is made in every field of the inventory: its one word needs no name."""
    for path in sorted((ROOT / "orchestrator" / folder).glob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name != "Expected":
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if text.startswith("dataclass"):
                        assert text == "dataclass(frozen=True, kw_only=True)", f"{place(path)}: {node.name}"


def test_no_command_goes_through_a_shell_of_ours() -> None:
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("os.system", "os.popen", "subprocess.getoutput"), place(path)
                shell = [word for word in node.keywords if word.arg == "shell"]
                assert not shell, f"{place(path)}:{node.lineno}"


def test_only_what_exists_for_it_touches_torch_distributed() -> None:
    touching = {
        place(path) for path in SOURCES if re.search(r"^\s*(from|import) torch\.distributed", path.read_text(), re.M)
    }
    assert touching <= TOUCH_DISTRIBUTED


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
    assert [place(path) for path in SOURCES if later.search(path.read_text())] == []


def test_importing_does_nothing() -> None:
    """No output, no thread, whatever is imported of the controller's half."""
    names = [
        place(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
        if path.parts[-2] != "trainer" and "trainer" not in path.parts and path.name != "__main__.py"
    ]
    program = (
        f"import importlib, threading\nfor name in {names}: importlib.import_module(name)\n"
        "assert threading.active_count() == 1"
    )
    ran = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_every_error_has_an_exit_code_of_the_list() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OrchError)]
    assert {kind.exit_code for kind in kinds} == {1, 2, 3, 4, 5, 6, 7}
    assert (errors.EXIT_OK, errors.EXIT_INTERRUPTED) == (0, 130)


def commands_told() -> Iterator[tuple[str, str]]:
    """Each `orch …` of a document: a line of a code block, or a word in backticks."""
    for path in DOCUMENTS:
        blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", path.read_text(), re.M | re.S)
        lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
        spans = re.findall(r"`(orch [^`]+)`", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S))
        for text in [*lines, *spans]:
            if text.startswith("orch "):
                yield path.name, text.partition("  #")[0]


@pytest.mark.parametrize(("document", "told"), sorted(set(commands_told())), ids=lambda value: value)
def test_commands_of_the_documents_exist(document: str, told: str) -> None:
    """The command, and each of its long options."""
    words = shlex.split(told.replace("…", "").replace("[", "").replace("]", ""), comments=True)[1:]
    command, rest = (words or ["--help"])[0], words[1:]
    if command.startswith("-"):
        assert command in ("--help", "--version", "-h")
        return
    assert command in COMMANDS
    declared = build_app(command).commands[command]
    while rest and rest[0] in getattr(declared, "commands", {}):
        declared, rest = declared.commands[rest[0]], rest[1:]
    options = {option for parameter in declared.params for option in (*parameter.opts, *parameter.secondary_opts)}
    own = rest[: rest.index("--")] if "--" in rest else rest
    for word in own:
        if word.startswith("--"):
            assert word.partition("=")[0] in options | {"--help"}, f"{document}: {told}"


def test_scripts_of_the_documents_exist() -> None:
    for path in DOCUMENTS:
        for script in re.findall(r"\bscripts/[\w.-]*\w", path.read_text()):
            assert (ROOT / script).is_file(), f"{path.name}: {script}"


def test_links_of_the_documents_lead_somewhere() -> None:
    for path in [*DOCUMENTS, *ROOT.glob("docs/adr/*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{place(path)}: {link}"


def test_the_table_of_features_names_tests_that_exist() -> None:
    table = (ROOT / "docs/features.md").read_text("utf-8")
    tests = "\n".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    named = set(re.findall(r"::(test_\w+)", table))
    assert len(named) > 80
    assert {name for name in named if f"def {name}(" not in tests} == set()
    files = set(re.findall(r"\btest_\w+\.py", table)) - {"test_ddp.py"}  # which is a guide's script
    assert {name for name in files if not any(ROOT.glob(f"tests/**/{name}"))} == set()
    code = set(re.findall(r"\b(?:engine|models|data|workloads|tools)/\w+\.py", table))
    assert {name for name in code if not (ROOT / "trainer" / name).is_file()} == set()
