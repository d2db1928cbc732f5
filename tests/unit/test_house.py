"""The structure of the code: layers, sizes, frozen data, imports without effects."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest

from benchmarks.code_measures import cycles, import_graph, module_name
from orchestrator.specs import errors

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for name in ("contract", "orch_hooks", "orchestrator", "trainer") for path in ROOT.glob(f"{name}/**/*.py")
)

MAY_BE_LONG = {"trainer/engine/loop.py:_loop": "the training loop is linear, to be read like an essay"}
MOST_ATTRIBUTES = 8
MANY_ATTRIBUTES = {
    "AgentListener", "CachedImages", "Checkpointer", "Compiler", "Coordinator", "CoordinatorClient",
    "CoordinatorServer", "Copy", "Ddp", "DdpHook", "EventWriter", "EveryStep", "Exchange", "FleetWatch",
    "Follower", "GPT2", "Gpt2", "InNodes", "Layer", "LiveStream", "LivenessWatch", "LocalSteps", "LogPrinter",
    "LogReader", "MicroBatchLoader", "MonitorApp", "NodeAgent", "ProgressView", "RankProgress", "RankStatus",
    "Ranks", "RunHistory", "RunWriter", "Screen", "SharedBatches", "SlurmCarrier", "SpeedShares",
    "StepProfiler", "StepReporter", "StoreServer", "StoreWatch", "Text", "Throughput", "TokenFiles",
    "TracesWorkload", "TrainingReporter", "Vision", "_Progress", "_Relay", "_Situation",
}  # fmt: skip
"""Classes with more attributes than that. The list may only shrink: a name that is no exception any more goes."""
TOUCH_DISTRIBUTED = {
    "trainer/engine/group.py",
    "trainer/engine/process_group.py",
    "trainer/engine/transfers.py",
    "trainer/engine/loop.py",
    "trainer/tools/test_ddp.py",
    "trainer/agent/at_start/orch_streams.py",
    "trainer/agent/torchrun.py",
}
"""`loop` and `test_ddp` for `record` alone, which writes torchrun's error file; `orch_streams` and `torchrun` for its
own seams."""


Modules = Mapping[Path, Sequence[ast.AST]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """The tree of every module, and all nodes below it: to parse and walk them takes seconds, and many tests do it."""
    return {path: [*ast.walk(ast.parse(path.read_text(), feature_version=(3, 11)))] for path in SOURCES}


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.source
def test_layers_are_respected() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    ran = subprocess.run((sys.executable, "-c", program), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.source
def test_no_modules_import_each_other(modules: Modules) -> None:
    """Import-linter does not see a cycle inside one layer, nor one through an import inside a function."""
    assert (
        cycles(import_graph({module_name(path.relative_to(ROOT)): tree for path, (tree, *_) in modules.items()})) == []
    )


def test_contract_needs_the_standard_library_alone() -> None:
    imported = {
        name.split(".")[0]
        for path in (ROOT / "contract").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported - sys.stdlib_module_names == {"contract"}


@pytest.mark.source
def test_the_median_file_is_small() -> None:
    sizes = [lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > 5]
    assert median(sizes) < 120


@pytest.mark.source
def test_classes_are_small(modules: Modules) -> None:
    large = {
        f"{place(path)}:{node.name}": lines
        for path, nodes in modules.items()
        for node in nodes
        if isinstance(node, ast.ClassDef) and (lines := (node.end_lineno or 0) - node.lineno + 1) >= 300
    }
    assert large == {}


@pytest.mark.source
def test_objects_that_change_have_few_attributes(modules: Modules) -> None:
    """Attributes that the methods of a class assign; frozen data assigns none."""
    many = {
        node.name
        for nodes in modules.values()
        for node in nodes
        if isinstance(node, ast.ClassDef) and len(assigned(node)) > MOST_ATTRIBUTES
    }
    assert many == MANY_ATTRIBUTES


def assigned(kind: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for method in kind.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.source
def test_public_classes_have_different_names(modules: Modules) -> None:
    """One class name, one meaning, in contract, orchestrator and trainer together."""
    places: dict[str, list[str]] = {}
    for path, (tree, *_) in modules.items():
        for node in tree.body:  # type: ignore[attr-defined]  # the first node of a module is itself
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(place(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.source
def test_functions_are_short(modules: Modules) -> None:
    """Lines count from the first statement on: the options of a command are its declaration."""
    long = {
        f"{place(path)}:{node.name}": lines
        for path, nodes in modules.items()
        for node in nodes
        if isinstance(node, ast.FunctionDef) and (lines := (node.end_lineno or 0) - node.body[0].lineno + 1) >= 50
    }
    assert set(long) == set(MAY_BE_LONG), long


@pytest.mark.source
def test_no_module_for_the_rest() -> None:
    odd = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "handler"}
    assert [place(path) for path in SOURCES if odd & set(path.stem.split("_") + list(path.parts[-2:-1]))] == []


@pytest.mark.source
@pytest.mark.parametrize("folder", ["specs", "plan", "checks"])
def test_data_is_frozen_and_named(modules: Modules, folder: str) -> None:
    """`Expected` is made in every field of the inventory: its one word needs no name."""
    for path in sorted((ROOT / "orchestrator" / folder).glob("*.py")):
        for node in modules[path]:
            if isinstance(node, ast.ClassDef) and node.name != "Expected":
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if text.startswith("dataclass"):
                        assert text == "dataclass(frozen=True, kw_only=True)", f"{place(path)}: {node.name}"


@pytest.mark.source
def test_no_command_goes_through_a_shell_of_ours(modules: Modules) -> None:
    for path, nodes in modules.items():
        for node in nodes:
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and node.func.attr in ("system", "popen", "getoutput"):
                    assert ast.unparse(node.func) not in ("os.system", "os.popen", "subprocess.getoutput"), place(path)
                shell = [word for word in node.keywords if word.arg == "shell"]
                assert not shell, f"{place(path)}:{node.lineno}"


@pytest.mark.source
def test_only_what_exists_for_it_touches_torch_distributed() -> None:
    touching = {
        place(path) for path in SOURCES if re.search(r"^\s*(from|import) torch\.distributed", path.read_text(), re.M)
    }
    assert touching <= TOUCH_DISTRIBUTED


@pytest.mark.source
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
