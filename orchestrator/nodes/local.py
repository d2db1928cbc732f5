"""The controller itself as a node."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, TYPE_CHECKING, cast

from orchestrator.nodes.archive import CHUNK, outside_file
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, CommandOutput, Completed, Engine, resolved
from orchestrator.specs.errors import CommandFailedError, DeadlineError

if TYPE_CHECKING:
    import docker

    from orchestrator.nodes.docker_engine import DockerEngine


def _home() -> Path:
    """Folder of a command, the one that a login by SSH begins in: never the caller's, where `python3 -c` would import
    what a cloned project has named `socket.py`."""
    home = Path("~").expanduser()
    return home if home.is_dir() else Path("/")


class LocalNode:
    """`Node` without a connection."""

    def __init__(self, name: str = "controller", address: str = "127.0.0.1", engine: Engine | None = None) -> None:
        self.name = name
        self._address = address
        self._engine = engine

    @property
    def engine(self) -> Engine:
        return self._engine or self._own_engine

    @cached_property
    def _own_engine(self) -> DockerEngine:
        return _docker_engine(self.name)

    @property
    def address(self) -> str:
        return resolved(self._address, node=self.name)

    def open(self) -> None:
        return

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=_home(),
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            return Completed(node=self.name, argv=tuple(argv), exit_code=127, stdout="", stderr=str(error))
        Thread(target=_feed, args=(process.stdin, _pieces(stdin)), daemon=True).start()
        process.stdin = None
        out, err = CommandOutput(argv, self.name), CommandOutput(argv, self.name)
        _collect(process, out, err, self.name, timeout_s)
        return Completed(
            node=self.name, argv=tuple(argv), exit_code=process.returncode, stdout=out.text, stderr=err.text
        )

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        with TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL if stdin == b"" else subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    cwd=_home(),
                    start_new_session=True,
                )
            except OSError as error:
                raise CommandFailedError(f"reading from {argv[0]} failed: {error}", node=self.name) from error
            if process.stdin:
                Thread(target=_feed, args=(process.stdin, _pieces(stdin)), daemon=True).start()
                process.stdin = None
            yield from self._chunks(process, argv, timeout_s)
            errors.seek(0)
            output = errors.read().decode(errors="replace")
        ended = Completed(node=self.name, argv=tuple(argv), exit_code=process.returncode, stdout="", stderr=output)
        ended.check(f"reading from {argv[0]}")

    def _chunks(self, process: subprocess.Popen[bytes], argv: Sequence[str], timeout_s: float) -> Iterator[bytes]:
        """Stdout of the process until it ends; it is killed when the reader stops, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with process, selectors.DefaultSelector() as selector:
            out = cast("IO[bytes]", process.stdout)  # a pipe was asked for
            selector.register(out, selectors.EVENT_READ)
            try:
                while selector.select(max(0.0, deadline - time.monotonic())):
                    if not (chunk := out.read(CHUNK)):
                        process.wait(max(0.0, deadline - time.monotonic()))
                        return
                    yield chunk
                raise subprocess.TimeoutExpired(list(argv), timeout_s)
            except subprocess.TimeoutExpired:
                raise DeadlineError(f"{argv[0]} had not ended after {timeout_s:.0f} s", node=self.name) from None
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        self._copy(source, Path(target), only)

    def get(self, source: str, target: Path) -> None:
        self._copy(Path(source), target)

    def close(self) -> None:
        if "_own_engine" in self.__dict__:
            self._own_engine.close()

    def _copy(self, source: Path, target: Path, only: Sequence[str] | None = None) -> None:
        try:
            copy(source, target, only)
        except OSError as error:  # shutil's own Error is one too
            raise CommandFailedError(f"copying {source} to {target} failed: {error}", node=self.name) from error


def copy(source: Path, target: Path, only: Sequence[str] | None = None) -> None:
    """Copy a file, or the contents of a folder; parents are made. Links and `only`: as in `Node.put`."""
    if only is not None:
        target.mkdir(parents=True, exist_ok=True)
        for name in only:
            one, there = source / name, target / name
            if one.is_symlink():
                there.unlink(missing_ok=True)
                there.symlink_to(one.readlink())
            elif one.is_dir():
                there.mkdir(exist_ok=True)
            else:
                shutil.copy2(one, there)
    elif source.is_dir():
        if target.resolve().is_relative_to(
            source.resolve()
        ):  # it would be copied into its copy, until the disk is full
            raise OSError(f"{target} lies within {source}")
        links = [path for path in source.rglob("*") if path.is_symlink()]
        for link in links:  # copytree replaces files, but fails on existing links
            (target / link.relative_to(source)).unlink(missing_ok=True)
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        for link in links:
            if file := outside_file(link, source):
                (target / link.relative_to(source)).unlink()
                shutil.copy2(file, target / link.relative_to(source))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _collect(
    process: subprocess.Popen[bytes], out: CommandOutput, err: CommandOutput, node: str, timeout_s: float
) -> None:
    """Collect the output until the process ends; it is killed if it writes too much or takes too long."""
    deadline = time.monotonic() + timeout_s
    with process, selectors.DefaultSelector() as selector:
        selector.register(cast("IO[bytes]", process.stdout), selectors.EVENT_READ, out)  # pipes were asked for
        selector.register(cast("IO[bytes]", process.stderr), selectors.EVENT_READ, err)
        try:
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready or time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(process.args, timeout_s)
                for key, _ in ready:
                    if chunk := os.read(key.fd, CHUNK):
                        key.data.add(chunk)
                    else:
                        selector.unregister(key.fileobj)
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            command = cast("list[str]", process.args)[0]
            raise DeadlineError(f"{command} had not ended after {timeout_s:.0f} s", node=node) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold the pipes open


def _pieces(stdin: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return (stdin,) if isinstance(stdin, bytes) else stdin


def _feed(pipe: IO[bytes], chunks: Iterable[bytes]) -> None:
    try:
        with pipe:
            for chunk in chunks:
                while chunk:  # a pipe without a buffer may take a part
                    chunk = chunk[pipe.write(chunk) :]
                pipe.flush()
    except OSError:
        return  # the command ended without reading all of it; its exit code decides


def _docker_engine(name: str) -> DockerEngine:
    from orchestrator.nodes.docker_engine import DockerEngine  # 20 MiB with its SSH, which processes need not

    return DockerEngine(name, _docker_client, explain=_why_no_engine)


def _docker_client() -> docker.APIClient:
    import docker
    from docker.utils import kwargs_from_env

    options = kwargs_from_env()
    _require_answer(options.get("base_url", "unix:///var/run/docker.sock"))
    return docker.APIClient(version="auto", **options)


def _require_answer(url: str) -> None:
    """OSError: nothing answers at this socket. Tried here because the SDK leaves a socket that cannot connect open."""
    kind, _, path = url.partition("://")
    if kind == "unix":
        path = f"/{path.lstrip('/')}"
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(path)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None


def _why_no_engine() -> str:
    return ""
