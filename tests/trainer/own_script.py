"""A user's script as a rank of a run: `… -m tests.trainer.own_script SCRIPT FOLDER SYNC`."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    script, folder, sync = sys.argv[1:]
    # Each rank is a node of its own.
    os.environ.update(ORCH_RUN_DIR=f"{folder}/node-{os.environ['RANK']}", LOCAL_RANK="0", ORCH_SYNC=sync)
    os.makedirs(os.environ["ORCH_RUN_DIR"], exist_ok=True)  # noqa: PTH103  # the agents of a run have made it
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()
    os._exit(0)  # threads of gloo may outlive Python
