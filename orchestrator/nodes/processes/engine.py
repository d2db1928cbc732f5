"""An `Engine` without containers: each is a process of this computer, for machines where no Docker Engine can run.

The same plan is carried out: the very `ContainerSpec`, its paths translated through its mounts, its torchrun that of
the Python which runs orch. All state lies in files, so that every command works from another terminal and after the
launcher is gone. What needs a kernel's help is not enforced: image, user, read-only root and mounts, capabilities,
network, and the limits of CPU, memory, shared memory, processes, open files and log size. OMP_NUM_THREADS comes with
the environment.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import shutil
import signal as signals
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib import metadata
from itertools import islice
from threading import Thread
from typing import BinaryIO, NoReturn

from pydantic import TypeAdapter

from orchestrator.nodes.interface import BuildRequest, Completed, Login, LogLine, Progress
from orchestrator.nodes.log_stream import after, read_lines, read_stream
from orchestrator.nodes.processes.command import launch_of, link_nested_mounts, own_environment, resolve
from orchestrator.nodes.processes.files import ProcessFiles, processes_folder, read_json, write_json
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConflictError, DeadlineError, EngineError
from orchestrator.specs.facts import EngineFacts, ImageFacts
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.run import ContainerFacts


class WithoutImages:
    """Part of an engine without images: it finds none, and refuses to build one."""

    def __init__(self, node: str) -> None:
        self._node = node

    def image(self, reference: str) -> ImageFacts | None:  # noqa: ARG002  # there are none
        return None

    def images(self) -> list[ImageFacts]:
        return []

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:  # noqa: ARG002  # see above
        self._no_images(f"build {request.tag}")

    def save(self, reference: str) -> Iterator[bytes]:
        self._no_images(f"save {reference}")

    def load(self, archive: Iterable[bytes]) -> None:  # noqa: ARG002  # see above
        self._no_images("load an image")

    def import_root(self, archive: Iterable[bytes], reference: str) -> None:  # noqa: ARG002  # see above
        self._no_images(f"import {reference}")

    def pull(self, reference: str, login: Login | None = None) -> Iterator[Progress]:  # noqa: ARG002  # see above
        self._no_images(f"pull {reference}")

    def push(self, reference: str, login: Login | None = None) -> Iterator[Progress]:  # noqa: ARG002  # see above
        self._no_images(f"push {reference}")

    def tag(self, image_id: str, reference: str) -> None:  # noqa: ARG002  # see above
        self._no_images(f"tag {reference}")

    def remove_image(self, reference: str) -> None:
        self._no_images(f"remove {reference}")

    def _no_images(self, what: str) -> NoReturn:
        raise EngineError(
            f"cannot {what}: a process engine has no images, its containers are processes of this computer",
            node=self._node,
            hint="nothing to build here: orch launch runs the trainer of this Python",
        )


MIB = 1024 * 1024
KILLED = 137
_SPEC = TypeAdapter(ContainerSpec)


class ProcessEngine(WithoutImages):
    """`Engine` of one node; its containers are known by their folders."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self._folder = processes_folder() / node

    def facts(self) -> EngineFacts:
        """Facts of this computer; the version is that of torch, which replaces the image; empty if not installed."""
        try:
            version = metadata.version("torch")
        except metadata.PackageNotFoundError:
            version = ""
        return EngineFacts(
            kind="process",
            version=version,
            id=f"process:{self._node}",
            architecture=platform.machine(),
            operating_system=platform.platform(),
            cpus=os.cpu_count() or 1,
            memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        )

    def create(self, spec: ContainerSpec) -> str:
        with self._locked():
            self._require_free(spec.name)
            link_nested_mounts(spec.mounts, self._node)
            files = ProcessFiles(self._folder / secrets.token_hex(32))
            launch = launch_of(spec, self._node, files.id, scratch=files.folder / "scratch")
            files.folder.mkdir(exist_ok=True)
            write_json(files.launch, launch)
            write_json(files.spec, asdict(spec))  # last: with it, the container is there
        return files.id

    def start(self, container: str) -> None:
        with self._locked():
            files = self._files(container)
            if files.is_running():
                return
            if (answer := _start_supervisor(files, self._spec(files))) != "started":
                raise EngineError(f"the process of {container[:12]} would not start: {answer}", node=self._node)

    def rename_and_keep(self, container: str, name: str) -> None:
        with self._locked():
            files = self._files(container)
            self._require_free(name)
            write_json(files.spec, asdict(replace(self._spec(files), name=name)))

    def disable_restart(self, container: str) -> None:
        self._files(container).stopping.touch()

    def container(self, container: str) -> ContainerFacts | None:
        files = self._find(container)
        return self._facts(files) if files else None

    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:
        found = []
        for files in self._all():
            with suppress(FileNotFoundError):  # removed just now
                found.append(self._facts(files))
        return [
            facts
            for facts in found
            if all(key in facts.labels and value in ("", facts.labels[key]) for key, value in labels.items())
        ]

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        files = self._files(container)
        known = 0
        if since or tail is not None:
            past = list(read_lines(files))
            new = len(after(past, since) if since else past)
            known = len(past) - min(new, new if tail is None else tail)
        yield from islice(read_lines(files, follow=follow), known, None)

    def wait(self, container: str) -> ContainerFacts:
        files = self._files(container)
        files.wait_end(None)
        facts = self.container(files.id)
        if facts is None:
            raise EngineError(f"container {container[:12]} was removed while it was waited for", node=self._node)
        return facts

    def signal(self, container: str, signal: str) -> None:
        """Signal the first process, like a container's init; SIGKILL goes to all."""
        files = self._running(container)
        number = signals.Signals[f"SIG{signal.removeprefix('SIG')}"]
        if number is signals.SIGKILL:
            files.kill()
        else:
            _signal_first(files, number)

    def stop(self, container: str, timeout_s: int) -> None:
        files = self._find(container)
        if files is None or not files.is_running():
            return
        files.stopping.touch()
        _signal_first(files, signals.SIGTERM)
        if not files.wait_end(timeout_s):
            files.kill()
            files.wait_end(None)

    def remove(self, container: str) -> None:
        files = self._find(container)
        if files is None:
            return
        files.stopping.touch()
        files.kill()
        files.wait_end(None)
        with self._locked():
            shutil.rmtree(files.folder, ignore_errors=True)

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        files = self._running(container)
        launch = read_json(files.launch)
        words = on_host(replace(self._spec(files), command=tuple(argv))).command
        try:
            done = subprocess.run(
                resolve(words, self._node),
                cwd=launch["folder"],
                env=launch["environment"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError as error:
            return Completed(node=self._node, argv=tuple(argv), exit_code=127, stdout="", stderr=str(error))
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return Completed(node=self._node, argv=tuple(argv), exit_code=done.returncode, stdout=out, stderr=err)

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:
        container = self.create(spec)
        try:
            self.start(container)
            files = self._files(container)
            if not files.wait_end(timeout_s):
                raise DeadlineError(f"{spec.command[0]} had not ended after {timeout_s:.0f} s", node=self._node)
            code = self._facts(files).exit_code
            out, err = (read_stream(files, stream) for stream in ("stdout", "stderr"))
        finally:
            self.remove(container)
        return Completed(node=self._node, argv=spec.command, exit_code=code or 0, stdout=out, stderr=err)

    def _facts(self, files: ProcessFiles) -> ContainerFacts:
        spec = self._spec(files)
        running = files.is_running()  # before the files: when it is gone, they are final
        started, ended = read_json(files.started), read_json(files.exit)
        dead = bool(started) and not running and not ended
        if dead:
            files.kill()  # without its first process nothing of a container lives on
        status = "running" if running else "dead" if dead else "exited" if ended else "created"
        return ContainerFacts(
            id=files.id,
            name=spec.name,
            image=spec.image,
            labels=spec.labels,
            status=status,
            exit_code=None if running else KILLED if dead else ended.get("exit_code"),
            started_at=started.get("started_at", ""),
            finished_at="" if running else ended.get("finished_at", ""),
            error="its supervisor was killed" if dead else "",
            restarts=started.get("restarts", 0),
        )

    def _all(self) -> list[ProcessFiles]:
        return [ProcessFiles(spec.parent) for spec in self._folder.glob("*/spec.json")]

    def _find(self, container: str) -> ProcessFiles | None:
        """The container with this id or name."""
        for files in self._all():
            with suppress(FileNotFoundError):
                if container == files.id or container == self._spec(files).name:
                    return files
        return None

    def _files(self, container: str) -> ProcessFiles:
        if (files := self._find(container)) is None:
            raise EngineError(f"no container {container[:12]}", node=self._node)
        return files

    def _running(self, container: str) -> ProcessFiles:
        files = self._files(container)
        if not files.is_running():
            raise ConflictError(f"container {container[:12]} is not running", node=self._node)
        return files

    def _spec(self, files: ProcessFiles) -> ContainerSpec:
        return _SPEC.validate_json(files.spec.read_bytes())

    def _require_free(self, name: str) -> None:
        if any(self._spec(files).name == name for files in self._all()):
            raise ConflictError(f"the name {name} is taken", node=self._node)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock this node: one change at a time across all programs."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # environments lie in it
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _signal_first(files: ProcessFiles, number: signals.Signals) -> None:
    """Signal the first process, unless it has just ended."""
    pid = read_json(files.started).get("pid", 0)
    if pid in set(files.members()):
        os.kill(pid, number)


def _start_supervisor(files: ProcessFiles, spec: ContainerSpec) -> str:
    """Detached, so that it outlives this program; its answer: `started`, or why not."""
    errors = files.folder / "supervisor.log"
    with errors.open("ab") as stderr:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.nodes.processes.supervisor", str(files.folder)],
            env=own_environment(os.environ, spec),
            cwd=files.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            text=True,
        )
    Thread(target=supervisor.wait, daemon=True).start()
    with supervisor.stdout as stdout:  # type: ignore[union-attr]  # PIPE above
        answer = stdout.readline().strip()
    return answer or errors.read_text().strip().rsplit("\n", 1)[-1]
