"""Size and structure of the code: of the working tree, or of revisions, each unpacked into a temporary folder.

python -m benchmarks.code_measures [REV…] [--json]
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("contract", "orch_hooks", "orchestrator", "trainer")
WORKING_TREE = "working tree"
DECODERS = ("parse_event", "decode_event", "decode")
"""Functions that decode an `@orch ` line."""
SPELLINGS = ("min_nodes", "node_timeout_s")
TRIVIAL_FILE, LONG_FUNCTION = 5, 50
"""Lines: files up to this length are left out of the median; functions above this length are counted."""

Figures = dict[str, int | float | str]
Graph = Mapping[str, Set[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revs", nargs="*", metavar="REV", help=f"Git revisions, side by side (default: {WORKING_TREE})")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = {rev: measure_revision(rev) for rev in given.revs} or {WORKING_TREE: measure(ROOT)}
    if given.json:
        print(json.dumps(measured, indent=2))
        return
    columns = [max(len(rev), *(len(_text(value)) for value in figures.values())) for rev, figures in measured.items()]
    rows = {
        "": measured.keys(),
        **{name: [f[name] for f in measured.values()] for name in next(iter(measured.values()))},
    }
    for name, values in rows.items():
        print(
            f"{name:<40}", *(_text(value).rjust(width) for value, width in zip(values, columns, strict=True)), sep="  "
        )


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def measure_revision(rev: str) -> Figures:
    """Measure a revision. Raises CalledProcessError if it does not exist."""
    packed = subprocess.run(("git", "archive", rev), cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(("tar", "-x", "-C", folder), input=packed, check=True)
        return measure(Path(folder))


def measure(root: Path, packages: Iterable[str] = PACKAGES) -> Figures:
    """All measures of a source tree, by name."""
    texts = {
        path.relative_to(root): path.read_text("utf-8") for name in packages for path in root.glob(f"{name}/**/*.py")
    }
    trees = {module_name(path): ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for tree in trees.values() for node in functions(tree)]
    longest = max(lines, key=lambda path: lines[path])
    figures: Figures = {"files": len(lines), "lines": sum(lines.values())}
    for name in packages:
        figures |= {
            f"{name}: files": sum(path.parts[0] == name for path in lines),
            f"{name}: lines": lines_of(root, name),
        }
    graph = import_graph(trees)
    circles = cycles(graph)
    importers = Counter(target for targets in graph.values() for target in targets)
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _public(node)
    )
    decoders = {
        name for name, tree in trees.items() if any(getattr(node, "name", "") in DECODERS for node in tree.body)
    }
    decoding = [count for tree in trees.values() if (count := event_decodings(tree, decoders))]
    return figures | {
        "tests: files": len([*root.glob("tests/**/*.py")]),
        "tests: lines": lines_of(root, "tests"),
        f"median lines of files over {TRIVIAL_FILE}": _median(n for n in lines.values() if n > TRIVIAL_FILE),
        "longest file": str(longest),
        "longest file: lines": lines[longest],
        "functions": len(lengths),
        "median lines of a function": _median(lengths),
        f"functions over {LONG_FUNCTION} lines": sum(n > LONG_FUNCTION for n in lengths),
        "private functions": sum(not _public(node) for tree in trees.values() for node in functions(tree)),
        "private functions called once": sum(len(called_once(tree)) for tree in trees.values()),
        "import cycles": len(circles),
        "modules in import cycles": sum(map(len, circles)),
        "modules with one importer": sum(count == 1 for count in importers.values()),
        "public class names used twice or more": sum(count > 1 for count in classes.values()),
        "call sites that decode an event": sum(decoding),
        "modules that decode an event": len(decoding),
        **{f"files that spell {word}": sum(word in text for text in texts.values()) for word in SPELLINGS},
    }


def lines_of(root: Path, package: str) -> int:
    """Lines of all Python files of a package."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in root.glob(f"{package}/**/*.py"))


def import_graph(trees: Mapping[str, ast.Module]) -> Graph:
    """Modules among these that each of them imports, by dotted name."""
    return {name: imported(tree, trees.keys()) - {name} for name, tree in trees.items()}


def _median(values: Iterable[int]) -> float:
    return statistics.median([*values] or [0])


def module_name(path: Path) -> str:
    """The dotted name of a source file; a package has the name of its folder."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _public(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not node.name.startswith("_") or node.name.endswith("__")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a module: methods and nested functions too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def called_once(tree: ast.Module) -> set[str]:
    """Names of private functions with exactly one call in their module."""
    calls = Counter(
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    )
    return {node.name for node in functions(tree) if not _public(node) and calls[node.name] == 1}


def imported(tree: ast.AST, modules: Set[str]) -> set[str]:
    """Modules that are imported, inside functions too. Imports are absolute: relative ones are ignored."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= modules else names | {node.module}
    return found & modules


def cycles(graph: Graph) -> list[set[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
            if target in stack:
                lowest[module] = min(lowest[module], lowest[target])
        if lowest[module] == order[module]:
            at = stack.index(module)
            components.append({*stack[at:]})
            del stack[at:]

    for module in graph:
        if module not in order:
            visit(module)
    return [component for component in components if len(component) > 1]


def event_decodings(tree: ast.AST, decoding: Set[str]) -> int:
    """Calls of a decoder that comes from one of the modules that define one: `decode(…)` or `events.decode(…)`."""
    own = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" in decoding or (node.module in decoding and alias.name in DECODERS)
    }
    called = {*own, *(f"{name}.{decoder}" for name in own for decoder in DECODERS)}
    return sum(isinstance(node, ast.Call) and ast.unparse(node.func) in called for node in ast.walk(tree))


if __name__ == "__main__":
    main()
