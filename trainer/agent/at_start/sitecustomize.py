"""Registration of the stack handler before a rank's program starts, the rank status once it imports torch, and the
folder of `orch_hooks` as the last one that is searched, which an image of the user's does not name. Nothing else of the
program changes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _the_next_one() -> None:
    """Run the `sitecustomize` that this one hides, for example that of the system's Python."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry) != here])
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


ours = str(Path(__file__).parents[3])
if ours not in sys.path:
    sys.path.append(ours)
before = set(sys.modules)
with contextlib.suppress(ImportError):  # another Python of the user's, without this package
    from trainer.agent import rank_status, stacks

    stacks.register(os.environ)
    rank_status.install(os.environ)
for name in set(sys.modules) - before:  # the user's program may have a module of that name
    if name.partition(".")[0] in ("trainer", "contract"):
        del sys.modules[name]
_the_next_one()
