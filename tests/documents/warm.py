"""`python -m MODULE` for many lines, with what it imports imported once: each line is run in a fork of this process.

Called with the module. Reads JSON lines `[folder, word, …]`; answers each with `[exit code, output]`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile

PRELOADED = {
    "trainer": ("torch._dynamo", "torch.nn.parallel", "tokenizers", "trainer.cli", "trainer.engine.run"),
    "orchestrator": ("docker", "fabric", "pydantic", "rich.table", "ruamel.yaml", "orchestrator.cli"),
}


def serve(module: str) -> None:
    for name in PRELOADED[module]:
        importlib.import_module(name)
    for line in sys.stdin:
        folder, *words = json.loads(line)
        with tempfile.TemporaryFile() as written:
            child = os.fork()
            if child == 0:
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
                _run(module, words)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            written.seek(0)
            sys.stdout.write(json.dumps([code, written.read().decode(errors="replace")]) + "\n")
            sys.stdout.flush()


def _run(module: str, words: list[str]) -> None:
    """Run the module as `python -m` would, and end this process."""
    code = 1
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        importlib.import_module("traceback").print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
