"""A root file system of one static program, made here: nothing has to be pulled."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from orchestrator.nodes.interface import Engine

IMAGE = "orch-contract:busybox"
LABEL = "orch-contract.test"
"""Label of every container that is made of it."""
PROGRAMS = ("cat", "grep", "head", "id", "printf", "ps", "pwd", "sh", "sleep", "test", "touch", "tr", "true", "yes")


def brought_to(engine: Engine) -> None:
    program = shutil.which("busybox")
    if program is None:
        pytest.fail("there is no busybox on this computer: apt-get install busybox-static")
    engine.import_root([_root_file_system(Path(program).resolve())], IMAGE)


def _root_file_system(busybox: Path) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as root:
        root.add(busybox, "bin/busybox")
        for program in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{program}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            root.addfile(link)
    return archive.getvalue()
