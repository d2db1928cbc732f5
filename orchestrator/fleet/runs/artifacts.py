"""Folders that a run was launched with, by their digests: its code, its data, and its agent if the image has none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from contract.data_check import DAMAGED, SUMS
from orchestrator.fleet.runs.code_files import PACKAGES, agent_digest, code_digest
from orchestrator.fleet.runs.known_sums import data_digest
from orchestrator.nodes.interface import Node
from orchestrator.specs.data import data_name, in_code
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ProjectDir:
    """The project's folder on a node."""

    node: Node
    folder: str


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder that a run was launched with."""

    what: str
    """`code`, `data` or `agent`."""
    run_id: str
    digest: str
    origin: str
    """Its folder on the controller that launched the run."""
    parts: tuple[str, ...] = ()
    """Nodes in the order of their parts of the data; empty: each has all of it."""
    without: frozenset[str] = frozenset()
    """Paths in the folder of the code that are data."""

    @property
    def is_code(self) -> bool:
        return self.what == "code"

    @property
    def listed(self) -> str:
        """Name of the list of code files, as the run writes into the same folder; empty for data."""
        return code_list(self.digest) if self.is_code else ""

    def run_folder(self, target: ProjectDir) -> str:
        return f"{target.folder}/runs/{self.run_id}"

    def place(self, target: ProjectDir) -> str:
        if self.is_code:
            return f"{self.run_folder(target)}/code"
        return f"{target.folder}/{self.mark(target)}"

    def mark(self, target: ProjectDir) -> str:
        """Path in the project's folder that exists once the artifact is complete on the node."""
        if self.is_code:
            return f"runs/{self.run_id}/{self.listed}"
        return f"{self.what}/{data_name(self.digest, self.parts, target.node.name)}"

    def marks(self, target: ProjectDir) -> tuple[str, ...]:
        """The same; of data also its sums, and the list of its damaged files, which exists if there are any."""
        if self.what != "data":
            return (self.mark(target),)
        sums = f"data/{SUMS}/{PurePosixPath(self.mark(target)).name}"
        return self.mark(target), sums, f"{sums}{DAMAGED}"

    @property
    def words_to_send(self) -> tuple[str, ...]:
        """Words after the folder for the script that sends it."""
        return (self.listed, *sorted(self.without))


def artifacts_of(plan: Plan) -> tuple[Artifact, ...]:
    """Code, data and agent of this run for which its plan has a digest."""
    code = Artifact(
        what="code",
        run_id=plan.run_id,
        digest=plan.code_digest,
        origin=plan.code_origin,
        without=in_code(plan.data),
    )
    data = {
        one.digest: Artifact(what="data", run_id=plan.run_id, digest=one.digest, origin=one.origin, parts=one.parts)
        for one in plan.data
    }
    agent = Artifact(what="agent", run_id=plan.run_id, digest=plan.agent_digest, origin=str(PACKAGES))
    return tuple(one for one in (code, *data.values(), agent) if one.digest)


def as_launched(artifact: Artifact) -> Path | None:
    """The controller's folder; None if its content has changed since the launch."""
    folder = Path(artifact.origin)
    with suppress(ConfigError, OSError):
        if not artifact.origin:
            return None
        if artifact.what == "agent":
            found = agent_digest()
        else:
            found = code_digest(folder, artifact.without) if artifact.is_code else data_digest(folder)
        return folder if found == artifact.digest else None
    return None


def code_list(digest: str) -> str:
    """Name of the file in a run's folder that lists its code's files; it exists once all of them are there."""
    return f"code-{digest}.list"
