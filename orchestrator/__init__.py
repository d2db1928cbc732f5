"""Turn a handful of unequal machines on a LAN into one PyTorch training run.

`__init__.pyi` lists the public names, and docs/python-api.md describes them. The module of a name is imported on first
use, so that `import orchestrator` and `orch --help` stay quick.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    modules = _modules() if name == "__all__" or not name.startswith("_") else {}
    if name == "__all__":
        return sorted(modules)
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(modules[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})


def _modules() -> dict[str, str]:
    """Return the module of each public name."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
