"""Replace a checkpoint by one of the same step, killed by SIGKILL at every line that runs, one child for each.

`python -m tests.trainer.killed_publish FOLDER exchange|rename` prints one JSON line per kill: what `to_resume` finds
then, and what is left after the next save.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from contract.checkpoint import CheckpointManifest
from trainer import checkpoint_folder
from trainer.data.files import exchange

FILES = tuple(f"{Path(module.__file__ or '').resolve()}" for module in (checkpoint_folder, shutil))


def refused(first: Path, second: Path) -> None:
    """Fail as renameat2 does on a file system without an exchange."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(first), None, str(second))


def scratch(root: Path, content: bytes) -> Path:
    """Write a checkpoint of step 10 that is not published."""

    def state(file: BinaryIO) -> None:
        file.write(content)

    return checkpoint_folder.write(root, CheckpointManifest(step=10, attempt=0), state, {})


def killed_at(number: int, root: Path, manner: str) -> bool:
    """Publish in a child that dies before the line of this number. Return whether it died."""
    child = os.fork()
    if not child:
        seen = 0

        def trace(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in FILES:
                return None
            if event == "line":
                seen += 1
                if seen > number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        new = scratch(root, b"new" * 100)
        sys.settrace(trace)
        checkpoint_folder.publish(new, refused if manner == "rename" else exchange)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


if __name__ == "__main__":
    folder, number, died = Path(sys.argv[1]), 0, True
    while died:
        root = folder / str(number) / "checkpoints"
        root.parent.mkdir()
        checkpoint_folder.publish(scratch(root, b"old"))
        died = killed_at(number, root, sys.argv[2])
        problems: list[str] = []
        found = checkpoint_folder.to_resume(root, None, 0, problems.append)
        size = found.state_file.stat().st_size if found else 0
        checkpoint_folder.publish(scratch(root, b"last"))
        left = sorted(path.name for path in root.iterdir())
        reported = {"died": died, "step": found and found.step, "size": size, "problems": problems, "left": left}
        sys.stdout.write(f"{json.dumps(reported)}\n")
        number += 1
