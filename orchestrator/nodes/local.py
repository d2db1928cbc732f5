"""This very computer as a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

import docker
from docker.utils import kwargs_from_env

from orchestrator.nodes.docker_engine import DockerEngine
from orchestrator.nodes.seam import Completed, Engine
from orchestrator.specs.errors import CommandFailedError, DeadlineError


class LocalNode:
    """`Node` without a connection."""

    def __init__(self, name: str = "controller", address: str = "127.0.0.1", engine: Engine | None = None) -> None:
        self.name = name
        self.address = address
        self.engine: Engine = engine or DockerEngine(name, _docker_client, explain=_why_no_engine)

    def open(self) -> None:
        return

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            return Completed(node=self.name, argv=tuple(argv), exit_code=127, stdout="", stderr=str(error))
        if not isinstance(stdin, bytes) and process.stdin:
            Thread(target=_feed, args=(process.stdin, stdin), daemon=True).start()
            process.stdin = None
        try:
            out, err = process.communicate(stdin if isinstance(stdin, bytes) else None, timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipes open
            process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise DeadlineError(f"{argv[0]} had not ended after {timeout_s:.0f} s", node=self.name) from None
        return Completed(
            node=self.name,
            argv=tuple(argv),
            exit_code=process.returncode,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
        )

    def put(self, source: Path, target: str) -> None:
        self._copy(source, Path(target))

    def get(self, source: str, target: Path) -> None:
        self._copy(Path(source), target)

    def close(self) -> None:
        if isinstance(self.engine, DockerEngine):
            self.engine.close()

    def _copy(self, source: Path, target: Path) -> None:
        try:
            copy(source, target)
        except OSError as error:  # shutil's own Error is one too
            raise CommandFailedError(f"copying {source} to {target} failed: {error}", node=self.name) from error


def copy(source: Path, target: Path) -> None:
    """A file, or the contents of a folder, links as links; parents are made."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _feed(pipe: IO[bytes], chunks: Iterable[bytes]) -> None:
    try:
        with pipe:
            for chunk in chunks:
                pipe.write(chunk)
    except BrokenPipeError:
        return  # the command ended without reading all of it; its exit code tells


def _docker_client() -> docker.APIClient:
    return docker.APIClient(version="auto", **kwargs_from_env())


def _why_no_engine() -> str:
    return ""
