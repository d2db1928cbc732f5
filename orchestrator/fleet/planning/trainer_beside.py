"""The trainer of this installation, asked as a program: what it knows is pure, and needs neither torch nor a node.

orchestrator and trainer never import each other; a question and its answer are JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.nodes.interface import Completed, Node

PACKAGES = Path(orchestrator.__file__).parents[1]
"""Where the `trainer` package lies, beside `orchestrator`: in the repository, or where both are installed."""
# -I and -S: neither a folder `trainer` of the user's, where they stand, nor their site-packages come before ours.
_START = (
    "import os, runpy, sys; where, module, folder = sys.argv[1:]; sys.path.insert(0, where); os.chdir(folder);"
    " runpy.run_module(module, run_name='__main__')"
)


def ask_trainer(controller: Node, module: str, question: Mapping[str, Any], *, folder: Path | None = None) -> Completed:
    """What `python -m MODULE`, started in `folder`, answers to a question on stdin."""
    argv = (sys.executable, "-I", "-S", "-c", _START, str(PACKAGES), module, str(folder or Path()))
    return controller.run(argv, stdin=json.dumps(question).encode(), timeout_s=60)
