"""Modules that a program may bring itself when it runs: a longer path, or packages that it installs. From its text."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass

MENTIONED = re.compile(rb"\bsys\.path\b|\bsite\.addsitedir\b|\bpip")
"""Text without which a file brings nothing."""
_EXTEND = ("sys.path.append", "sys.path.insert", "sys.path.extend", "site.addsitedir")
_RUN = (
    "system", "popen", "Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "main",
)  # fmt: skip
"""Last names of functions that run a command, or pip itself. Others print or raise a text about it."""
_ELSEWHERE = ("environ", "getenv", "argv", "expanduser", "expandvars", "home")
_HERE = ("__file__", "getcwd", "cwd")


@dataclass(frozen=True, kw_only=True)
class BroughtModules:
    """Modules that a file may bring."""

    any: bool = False
    """True if they are not known: no import of the program is certain to fail."""
    packages: frozenset[str] = frozenset()
    """Packages that it installs by name."""


def brought_by(tree: ast.Module) -> BroughtModules:
    """Return what a module brings. A path that is relative to its own file leads to the folder that is sent with it."""
    text = _Names(tree)
    commands = [words for node in ast.walk(tree) if isinstance(node, ast.Call) for words in _installed(node, text)]
    extends = any(_leads_elsewhere(place, text) for place in _places(tree))
    packages = frozenset(word for words in commands for word in words or ())
    return BroughtModules(any=extends or None in commands, packages=packages)


class _Names:
    """Values of the names of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, list[ast.expr]] = {}
        self.known = set(dir(builtins)) | {"__file__", "__name__"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.values.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.known |= {(one.asname or one.name).partition(".")[0] for one in node.names}

    def within(self, *expressions: ast.expr) -> Iterator[ast.AST]:
        """Yield the nodes of expressions, and of the values of their names."""
        seen: set[str] = set()
        waiting = list(expressions)[::-1]
        while waiting:
            for node in ast.walk(waiting.pop()):
                yield node
                if isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    waiting += self.values.get(node.id, ())

    def is_open(self, node: ast.AST) -> bool:
        """Return whether a name has a value that the text does not show, such as an argument of a function."""
        return isinstance(node, ast.Name) and node.id not in self.values and node.id not in self.known


def _places(tree: ast.Module) -> Iterator[ast.expr]:
    """Expressions that a program adds to its path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _EXTEND:
            yield from node.args[-1:]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(one).startswith("sys.path") for one in targets):
                yield node.value


def _leads_elsewhere(place: ast.expr, names: _Names) -> bool:
    """Return whether a place of the path may be outside of the folder that is sent."""
    nodes = list(names.within(place))
    words = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if words & set(_ELSEWHERE) or any(text.startswith(("/", "~")) and len(text) > 1 for text in texts):
        return True
    return not words & set(_HERE) and (not texts or any(map(names.is_open, nodes)))


def _installed(call: ast.Call, names: _Names) -> Iterator[frozenset[str] | None]:
    """Packages of a call that runs `pip install`; None: they are not in the text."""
    if ast.unparse(call.func).rpartition(".")[2] not in _RUN or not call.args:
        return
    nodes = list(names.within(*call.args))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words = " ".join(texts).split()
    if "install" not in words or (
        not any(re.fullmatch(r"(?:.*/)?pip[0-9.]*|-mpip", word) for word in words)
        and ("pip" not in ast.unparse(call.func))
    ):
        return
    listed = words[words.index("install") + 1 :]
    hidden = any(names.is_open(node) or isinstance(node, ast.FormattedValue | ast.Starred) for node in nodes)
    if hidden or any(word.startswith(("-r", "--requirement", "-e", ".", "git+")) for word in listed):
        yield None
    else:
        yield frozenset(re.split(r"[\[<>=!~;@]", word)[0] for word in listed if not word.startswith("-"))
