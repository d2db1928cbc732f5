"""A machine in memory, for the tests of this package and of packages built on it.

It keeps the contract of the real ones. A command without a scripted answer is a failure, not a silent success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Condition
from typing import BinaryIO

from orchestrator.nodes.interface import (
    TRANSFER_TIMEOUT_S,
    BuildRequest,
    CommandOutput,
    Completed,
    Login,
    LogLine,
    Progress,
)
from orchestrator.nodes.local import copy
from orchestrator.nodes.log_stream import after
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import CommandFailedError, ConflictError, EngineError, EngineRefusedError, OrchError
from orchestrator.specs.facts import EngineFacts, ImageFacts
from orchestrator.specs.run import ContainerFacts

Answer = tuple[int, str, str]
"""Exit code, stdout (bytes that are not text as surrogates), stderr."""


class UnexpectedCallError(BaseException):
    """The test gave no answer for this call. A `BaseException`, so that it never becomes the outcome of a node."""


@dataclass
class FakeEngine:
    """`Engine` in memory. `programs` answers `run_once`; containers end when the test calls `finish`."""

    node: str
    programs: Callable[[ContainerSpec], Answer] | None = None
    failures: dict[str, OrchError] = field(default_factory=dict)
    """Exceptions to raise, by method name."""
    description: EngineFacts = field(
        default_factory=lambda: EngineFacts(kind="docker", version="28.2.2", id="fake", architecture="x86_64")
    )
    held: dict[str, ImageFacts] = field(default_factory=dict)
    """Images by id."""
    registry: dict[str, ImageFacts] = field(default_factory=dict)
    """Images of the registry that it reaches, by name; share it between engines."""
    made: dict[str, tuple[ContainerSpec, ContainerFacts]] = field(default_factory=dict)
    lines: dict[str, list[LogLine]] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    changed: Condition = field(default_factory=Condition)

    def facts(self) -> EngineFacts:
        self._called("facts")
        return self.description

    def image(self, reference: str) -> ImageFacts | None:
        self._called("image", reference)
        return next((image for image in self.held.values() if reference in (image.id, *image.tags)), None)

    def images(self) -> list[ImageFacts]:
        self._called("images")
        return list(self.held.values())

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:
        self._called("build", request.tag)
        yield Progress(text=f"read {len(context.read())} bytes")
        self._hold(ImageFacts(id=f"sha256:built-{len(self.held)}", tags=(request.tag,), labels=dict(request.labels)))

    def save(self, reference: str) -> Iterator[bytes]:
        self._called("save", reference)
        if (image := self.image(reference)) is None:
            raise EngineError(f"no image {reference}", node=self.node)
        yield image.id.encode()

    def load(self, archive: Iterable[bytes]) -> None:
        self._called("load")
        self._hold(ImageFacts(id=b"".join(archive).decode()))

    def import_root(self, archive: Iterable[bytes], reference: str) -> None:
        self._called("import_root", reference)
        self._hold(ImageFacts(id=f"sha256:root-{len(b''.join(archive))}", tags=(reference,)))

    def pull(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        self._called("pull", reference, *([login["username"]] if login else []))
        if reference not in self.registry:
            raise EngineRefusedError(f"pulling {reference} failed: manifest unknown", node=self.node)
        yield Progress(text=f"pulling {reference}")
        self._hold(replace(self.registry[reference], tags=(reference,)))

    def push(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        self._called("push", reference, *([login["username"]] if login else []))
        if (image := self.image(reference)) is None:
            raise EngineError(f"no image {reference}", node=self.node)
        yield Progress(text=f"pushing {reference}")
        self.registry[reference] = image

    def tag(self, image_id: str, reference: str) -> None:
        self._called("tag", image_id, reference)
        image = self.held[image_id]
        self._hold(replace(image, tags=tuple(dict.fromkeys((*image.tags, reference)))))

    def remove_image(self, reference: str) -> None:
        self._called("remove_image", reference)
        if image := self.image(reference):
            left = tuple(tag for tag in image.tags if tag != reference)
            del self.held[image.id]
            if left and reference != image.id:  # other names keep it
                self.held[image.id] = replace(image, tags=left)

    def create(self, spec: ContainerSpec) -> str:
        self._called("create", spec.name)
        with self.changed:
            self._require_free(spec.name)
            id = f"{self.node}-{len(self.calls)}"
            facts = ContainerFacts(id=id, name=spec.name, image=spec.image, labels=spec.labels, status="created")
            self.made[id] = (spec, facts)
            self.lines[id] = []
        return id

    def start(self, container: str) -> None:
        self._called("start", container)
        self._change(container, status="running", started_at="2026-01-01T00:00:00Z")

    def rename_and_keep(self, container: str, name: str) -> None:
        self._called("rename_and_keep", container, name)
        self._require_free(name)
        self._change(container, name=name)

    def disable_restart(self, container: str) -> None:
        self._called("disable_restart", container)
        self._facts(container)

    def container(self, container: str) -> ContainerFacts | None:
        self._called("container", container)
        return next((facts for _, facts in self.made.values() if container in (facts.id, facts.name)), None)

    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:
        self._called("containers")
        return [
            facts
            for _, facts in self.made.values()
            if all(key in facts.labels and value in ("", facts.labels[key]) for key, value in labels.items())
        ]

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        self._called("logs", container)
        self._facts(container)
        shown = len(self.lines[container])
        past = after(self.lines[container][:shown], since) if since else self.lines[container][:shown]
        yield from past if tail is None else past[max(0, len(past) - tail) :]
        while follow and (new := self._news(container, shown)):
            shown += len(new)
            yield from new

    def wait(self, container: str) -> ContainerFacts:
        with self.changed:
            self.changed.wait_for(lambda: container not in self.made or self._facts(container).status == "exited")
        if container not in self.made:
            raise EngineError(f"container {container} was removed while it was waited for", node=self.node)
        return self._facts(container)

    def signal(self, container: str, signal: str) -> None:
        self._called("signal", container, signal)
        self._change(container)

    def stop(self, container: str, timeout_s: int) -> None:
        self._called("stop", container, str(timeout_s))
        if self._is_running(container):
            self.finish(container, 0)

    def remove(self, container: str) -> None:
        self._called("remove", container)
        with self.changed:
            self.made.pop(container, None)
            self.changed.notify_all()

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        self._called("execute", container, *argv)
        raise UnexpectedCallError(f"{self.node}: execute {list(argv)}")

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:
        self._called("run_once", *spec.command, str(timeout_s))
        if self.programs is None:
            raise UnexpectedCallError(f"{self.node}: run_once {list(spec.command)}")
        code, out, err = self.programs(spec)
        return Completed(node=self.node, argv=spec.command, exit_code=code, stdout=out, stderr=err)

    def write(self, container: str, time: str, text: str) -> None:
        """Append lines to the container's log."""
        with self.changed:
            self.lines[container].append(LogLine(time=time, text=text))
            self.changed.notify_all()

    def finish(self, container: str, exit_code: int, *, oom_killed: bool = False) -> None:
        """End the container."""
        self._change(
            container,
            status="exited",
            exit_code=exit_code,
            oom_killed=oom_killed,
            finished_at="2026-01-01T00:01:00Z",
        )

    def _called(self, *call: str) -> None:
        self.calls.append(call)
        if error := self.failures.get(call[0]):
            raise error

    def _hold(self, image: ImageFacts) -> None:
        """Add or replace an image. Its tags move to it."""
        for other in list(self.held.values()):
            remaining = tuple(tag for tag in other.tags if tag not in image.tags)
            self.held[other.id] = replace(other, tags=remaining)
        self.held[image.id] = image

    def _facts(self, container: str) -> ContainerFacts:
        if container not in self.made:
            raise EngineError(f"no container {container}", node=self.node)
        return self.made[container][1]

    def _news(self, container: str, shown: int) -> list[LogLine]:
        """Lines after these, waited for; none where it has ended or is gone."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.lines[container]) > shown or not self._is_running(container))
            return self.lines[container][shown:]

    def _is_running(self, container: str) -> bool:
        return container in self.made and self._facts(container).status == "running"

    def _require_free(self, name: str) -> None:
        if any(facts.name == name for _, facts in self.made.values()):
            raise ConflictError(f"the name {name} is taken", node=self.node)

    def _change(self, container: str, **change: object) -> None:
        with self.changed:
            self._facts(container)
            spec, facts = self.made[container]
            self.made[container] = (spec, replace(facts, **change))  # type: ignore[arg-type]  # names are ours
            self.changed.notify_all()


@dataclass
class FakeNode:
    """`Node` in memory; its files lie under `root`. `answers` holds what a command gives, by its argv."""

    name: str
    root: Path = Path("/nonexistent")
    address: str = "10.0.0.1"
    answers: dict[tuple[str, ...], Answer | OrchError] = field(default_factory=dict)
    programs: Callable[[Sequence[str], bytes, float], Answer] | None = None
    """Answers what `answers` does not, from the command, its stdin and its timeout."""
    engine: FakeEngine = None  # type: ignore[assignment]  # made in __post_init__, for the node's name
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.engine is None:
            self.engine = FakeEngine(self.name)

    def open(self) -> None:
        return

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        content = stdin if isinstance(stdin, bytes) else b"".join(stdin)
        code, out, err = self._answer(argv, content, timeout_s)
        outputs = CommandOutput(argv, self.name), CommandOutput(argv, self.name)
        for output, text in zip(outputs, (out, err), strict=True):
            output.add(text.encode(errors="surrogateescape"))
        return Completed(
            node=self.name, argv=tuple(argv), exit_code=code, stdout=outputs[0].text, stderr=outputs[1].text
        )

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        code, out, err = self._answer(argv, stdin if isinstance(stdin, bytes) else b"".join(stdin), timeout_s)
        yield out.encode(errors="surrogateescape")
        Completed(node=self.name, argv=tuple(argv), exit_code=code, stdout="", stderr=err).check(
            f"reading from {argv[0]}"
        )

    def _answer(self, argv: Sequence[str], content: bytes, timeout_s: float) -> Answer:
        self.calls.append(tuple(argv))
        answer = next((self.answers[key] for key in self.answers if _matches(argv, key)), None)
        if isinstance(answer, OrchError):
            raise answer
        if answer is None and self.programs:
            answer = self.programs(argv, content, timeout_s)
        if answer is None:
            raise UnexpectedCallError(f"{self.name}: {list(argv)} within {timeout_s} s")
        return answer

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        self._copy(source, self.root / target.lstrip("/"), only)

    def get(self, source: str, target: Path) -> None:
        self._copy(self.root / source.lstrip("/"), target)

    def close(self) -> None:
        self.calls.append(("close",))

    def _copy(self, source: Path, target: Path, only: Sequence[str] | None = None) -> None:
        try:
            copy(source, target, only)
        except OSError as error:
            raise CommandFailedError(f"copying {source} to {target} failed: {error}", node=self.name) from error


def _matches(argv: Sequence[str], key: tuple[str, ...]) -> bool:
    """A key that ends in `*` stands for every command that begins like it."""
    return tuple(argv) == key or (key[-1] == "*" and tuple(argv[: len(key) - 1]) == key[:-1])
