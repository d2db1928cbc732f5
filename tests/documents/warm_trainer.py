"""`python -m trainer` for many lines, with torch imported once: each line is run in a fork of this process.

Reads JSON lines `[folder, word, …]`; answers each with `[exit code, output]`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

PRELOADED = ("torch._dynamo", "torch.nn.parallel", "tokenizers", "trainer.cli", "trainer.engine.run")


def serve() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        folder, *words = json.loads(line)
        with tempfile.TemporaryFile() as written:
            child = os.fork()
            if child == 0:
                os.chdir(folder)
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
                _run(words)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            written.seek(0)
            sys.stdout.write(json.dumps([code, written.read().decode(errors="replace")]) + "\n")
            sys.stdout.flush()


def _run(words: list[str]) -> None:
    """Run the module as `python -m trainer` would, and end this process."""
    code = 1
    sys.argv = [str(Path("trainer")), *words]
    try:
        runpy.run_module("trainer", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        importlib.import_module("traceback").print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
