"""Imports among the statements of a Python module, and whether each runs whenever the module does."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_FAILED_IMPORT = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
_ENDS = ("exit", "quit", "_exit", "SystemExit")
Statement = ast.Import | ast.ImportFrom


def import_statements(
    body: Sequence[ast.stmt], *, is_script: bool, sure: bool = True
) -> Iterator[tuple[Statement, bool]]:
    """Yield the imports of statements, each with whether it runs in any case; none that may fail."""
    for one in body:
        if isinstance(one, Statement):
            yield one, sure
        elif isinstance(one, ast.ClassDef | ast.With):
            suppressed = isinstance(one, ast.With) and "suppress" in ast.dump(one.items[0].context_expr)
            yield from () if suppressed else import_statements(one.body, is_script=is_script, sure=sure)
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.For | ast.While):
            yield from import_statements(one.body, is_script=is_script, sure=False)
        elif isinstance(one, ast.If):
            yield from _of_condition(one, is_script=is_script, sure=sure)
        elif isinstance(one, ast.Try):
            yield from _of_try(one, is_script=is_script, sure=sure)


def _of_condition(one: ast.If, *, is_script: bool, sure: bool) -> Iterator[tuple[Statement, bool]]:
    """Imports under `if`: none of `TYPE_CHECKING`, and those of `__name__ == "__main__"` for the script alone."""
    test = ast.unparse(one.test)
    if "TYPE_CHECKING" not in test and (is_script or "__main__" not in test):
        yield from import_statements(one.body, is_script=is_script, sure=sure and "__main__" in test and "==" in test)
    yield from import_statements(one.orelse, is_script=is_script, sure=False)


def _of_try(one: ast.Try, *, is_script: bool, sure: bool) -> Iterator[tuple[Statement, bool]]:
    """Imports under `try`: none where a failed one is handled, unless its handler ends the program."""
    handlers = [handler for handler in one.handlers if _handles(handler)]
    if not handlers:
        yield from import_statements(one.body, is_script=is_script, sure=sure)
    elif any(_gives_up(handler) for handler in handlers):
        yield from import_statements(one.body, is_script=is_script, sure=False)
    for part in (one.orelse, one.finalbody):
        yield from import_statements(part, is_script=is_script, sure=sure and not handlers)


def _handles(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(name in ast.unparse(handler.type) for name in _FAILED_IMPORT)


def _gives_up(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler of a failed import raises, or ends the program."""
    calls = [ast.unparse(node.func) for node in ast.walk(handler) if isinstance(node, ast.Call)]
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return raises or any(call.rpartition(".")[2] in _ENDS for call in calls)
