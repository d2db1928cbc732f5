"""The one interface to a machine: run a command, copy files, use its container engine.

Everything that leaves this process goes through `Node` and its `Engine`. Three implementations: ssh, local and
fake; the same contract tests run on all of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError
from orchestrator.specs.facts import EngineFacts, ImageFacts
from orchestrator.specs.reach import Reach
from orchestrator.specs.run import ContainerFacts

MIB = 1024 * 1024
OUTPUT_LIMIT = 16 * MIB
"""Bytes of stdout and of stderr each; longer output is read with `Node.stream`."""


def resolved(address: str, *, node: str) -> str:
    """The IPv4 address. Names are resolved here alone: on the nodes, host names hang runs."""
    try:
        return socket.gethostbyname(address)
    except OSError as error:
        raise NodeUnreachableError(
            f"{address} has no IPv4 address ({error.strerror or error})",
            reach=Reach.NO_ADDRESS,
            node=node,
            hint="write its address into the inventory: on that machine, `ip -4 address` shows it",
        ) from error


class CommandOutput(bytearray):
    """Output of a command, limited in size so that an endless command never fills the memory."""

    def __init__(self, argv: Sequence[str], node: str) -> None:
        super().__init__()
        self._command, self._node = argv[0], node

    def add(self, chunk: bytes) -> None:
        """CommandFailedError if the limit is exceeded."""
        if len(self) + len(chunk) > OUTPUT_LIMIT:
            raise CommandFailedError(
                f"{self._command} wrote more than {OUTPUT_LIMIT // MIB} MiB, the limit of one command; it was ended",
                node=self._node,
            )
        self += chunk

    @property
    def text(self) -> str:
        return self.decode(errors="replace")


TRANSFER_TIMEOUT_S = 3600.0
"""Timeout of operations that transfer files."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that has ended. The exit code decides; the text is for people and parsers."""

    node: str
    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    def check(self, doing: str, *, hint: str = "") -> str:
        """Stdout, or an error with the operation, the node and the last line that the command wrote."""
        if self.exit_code == 0:
            return self.stdout
        last = (self.stderr.strip() or self.stdout.strip()).rsplit("\n", 1)[-1]
        raise CommandFailedError(
            f"{doing} failed: {self.argv[0]} exited with {self.exit_code}: {last}", node=self.node, hint=hint
        )


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line that a container wrote."""

    time: str
    """RFC 3339 with nanoseconds, the node's clock; sorts as text."""
    text: str


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """Parameters of an image build."""

    tag: str
    dockerfile: str
    """Path inside the context."""
    args: Mapping[str, str]
    labels: Mapping[str, str]
    no_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a long transfer or build. `total` is 0 if unknown."""

    text: str
    done: int = 0
    total: int = 0
    left_s: float | None = None
    """Estimate of the remaining time; `done` of `total` is then a share, not bytes."""


Login = Mapping[str, str]
"""Credentials for a registry, as the Docker SDK reads them from Docker's own configuration."""


class Engine(Protocol):
    """A node's container engine. Every method raises `EngineError` with the node's name where the engine refuses."""

    def facts(self) -> EngineFacts: ...

    def image(self, reference: str) -> ImageFacts | None:
        """The image of this id or tag; None where the engine has none."""

    def images(self) -> list[ImageFacts]: ...

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:
        """Build from a tar archive; the engine's own lines as they come."""

    def save(self, reference: str) -> Iterator[bytes]:
        """The image as the tar archive that `load` takes."""

    def load(self, archive: Iterable[bytes]) -> None: ...

    def import_root(self, archive: Iterable[bytes], reference: str) -> None:
        """An image of one layer from the tar archive of a root file system (what `docker import` does)."""

    def pull(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        """Get the image from its registry. `login` is sent with this request alone, and stored nowhere."""

    def push(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        """Send the image to the registry that its name begins with."""

    def tag(self, image_id: str, reference: str) -> None: ...

    def remove_image(self, reference: str) -> None: ...

    def create(self, spec: ContainerSpec) -> str:
        """Create, not start; its id. `ConflictError` where the name is taken."""

    def start(self, container: str) -> None: ...

    def rename_and_keep(self, container: str, name: str) -> None:
        """Rename an ended container and keep it: a restart of its machine does not start it again."""

    def disable_restart(self, container: str) -> None:
        """Let a container end for good: the engine does not start it again."""

    def container(self, container: str) -> ContainerFacts | None: ...

    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:
        """All containers, ended ones included, that carry these labels (an empty value stands for any)."""

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        """Log lines, oldest first; with `follow`, until the container ends. `since` is a `LogLine.time`."""

    def wait(self, container: str) -> ContainerFacts:
        """Block until it has ended."""

    def signal(self, container: str, signal: str) -> None: ...

    def stop(self, container: str, timeout_s: int) -> None:
        """SIGTERM, then SIGKILL after `timeout_s`. No error where it has ended already."""

    def remove(self, container: str) -> None:
        """Kill and remove it. No error where it is gone already."""

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        """Run a command inside a running container."""

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:
        """Create, start, wait, collect and remove: a short command in a container of its own."""


class Node(Protocol):
    """One machine of the inventory, connected."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """IPv4 address at which the controller reaches the node."""

    @property
    def engine(self) -> Engine: ...

    def open(self) -> None:
        """Connect now; without it, the first use does."""

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        """Run a command. It gets these very arguments: nothing is ever read by a shell.

        Raises `DeadlineError` after `timeout_s` without an end, `NodeUnreachableError` where the connection is gone.
        """

    def stream(
        self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> Iterator[bytes]:
        """Stdout of a command as it is written: for output too large for memory, or a conversation: `stdin` is read by
        a thread, and each of its chunks is sent at once.

        Raises as `run` does; at the end `CommandFailedError` where it exited non-zero. Closing it ends the command.
        """

    def put(self, source: Path, target: str, *, only: Sequence[str] | None = None) -> None:
        """Copy a file, or the contents of a folder, to this path; parents are made.

        `only`: paths in the folder, parents before what they hold, with links as links; None: all of them, with the
        content of links to files that a copy of the folder would not lead to.
        """

    def get(self, source: str, target: Path) -> None:
        """Copy a file, or the contents of a folder, from the node."""

    def close(self) -> None: ...
