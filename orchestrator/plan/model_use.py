"""Use of a trained model after its run: the trainer's command, and the container that it runs in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from orchestrator.plan.command import CONTAINER_DATA, CONTAINER_WORKSPACE
from orchestrator.plan.container import SECRETS_INSIDE
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.container_limits import ContainerLimits
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.labels import LABEL_PURPOSE
from orchestrator.specs.measurement import option
from orchestrator.specs.plan import NodePlan, Plan

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "gpt2": ("sample", "evaluate"),
    "vision": ("predict", "evaluate"),
    "text": ("predict",),
    "traces-lstm": ("predict", "evaluate"),
    "traces-gnn": ("predict", "evaluate"),
    "custom": ("evaluate",),
}
"""Actions of each workload of the trainer, apart from training."""
FIGURES_ALONE = ("gpt2", "custom")
"""Workloads whose evaluation writes no file."""
PREDICTIONS = "predictions.csv"
MODEL, CODE, FILES, OUT = (f"{CONTAINER_WORKSPACE}/{name}" for name in ("model", "code", "in", "out"))


@dataclass(frozen=True, kw_only=True)
class ModelUse:
    """An action with the model of a run. ConfigError where the workload lacks it, UsageError for a script."""

    action: str
    plan: Plan
    own: bool = True
    """True if the plan is this computer's own: mounts of a node's answer are not used."""

    def __post_init__(self) -> None:
        if self.plan.program.is_own:
            raise UsageError(
                f"run {self.plan.run_id} is a script of your own: orch does not know how to {self.action} with it",
                hint=f"while it runs: orch exec {self.plan.run_id} -- python my_predict.py; "
                f"its files: orch pull {self.plan.run_id}",
            )
        if self.action not in (offered := ACTIONS.get(self.workload, ())):
            files = {"predict": " FILE", "sample": " --prompt PROMPT"}
            commands = " or ".join(f"orch {one} {self.plan.run_id}{files.get(one, '')}" for one in offered)
            raise ConfigError(f"the workload {self.workload} has no {self.action}", hint=commands or "orch runs")

    @property
    def workload(self) -> str:
        return self.plan.command[0] if self.plan.command else ""

    @property
    def writes_files(self) -> bool:
        return self.action != "sample" and self.workload not in FIGURES_ALONE

    @property
    def reads_data(self) -> bool:
        """True if it needs the prepared data of the run; `custom` may read none."""
        return self.action == "evaluate" and (self.workload != "custom" or bool(self.plan.data))

    def must_take(self, files: Sequence[str]) -> None:
        """UsageError: the workload does not take these files."""
        if self.workload == "text" and len(files) > 1:
            raise UsageError("text predicts one CSV file at a time", hint=f"orch predict {self.plan.run_id} {files[0]}")

    def folders(self, node: str, place: str) -> tuple[Mount, ...]:
        """Folders of the node that it reads. `place`: the project's folder there."""
        data = f"{place}/data/{self.plan.data[0].held_as(node)}" if self.plan.data else f"{place}/Data"
        code = f"{place}/runs/{self.plan.run_id}/code"
        return (
            *([Mount(source=data, target=CONTAINER_DATA, read_only=True)] if self.reads_data else ()),
            *([Mount(source=code, target=CODE, read_only=True)] if self.workload == "custom" else ()),
        )

    def command(self, options: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
        """Words after `python -m trainer`. `files`: names of the files that were copied to the node."""
        words = (self.workload, self.action, "--checkpoint", MODEL, *options)
        inside = [f"{FILES}/{name}" for name in files]
        table = f"{OUT}/{PREDICTIONS}"
        if self.action == "predict" and self.workload == "vision":
            return (*words, *(word for path in inside for word in ("--images", path)), "--out", table)
        if self.action == "predict" and self.workload == "text":
            return (*words, "--csv", *inside, "--out", table)
        if self.action == "predict":
            return (*words, "--input", *inside, "--output", table)
        if self.reads_data:
            words = (*words, "--data-dir", CONTAINER_DATA)
        if self.workload == "custom":
            return (*words, *_module(self.plan.command))
        if self.writes_files:
            return (*words, "--out" if self.workload == "vision" else "--pictures", OUT)
        return words

    def mounts(self, node: str, place: str, part: NodePlan | None) -> tuple[Mount, ...]:
        """Mounts of data and code, and the user's own of the launch, read-only."""
        launched = part.container.mounts if part and self.own and self.action == "evaluate" else ()
        theirs = [
            Mount(source=one.source, target=one.target, read_only=True)
            for one in launched
            if one.target not in (CONTAINER_WORKSPACE, CONTAINER_DATA)
            and not one.target.startswith(f"{CONTAINER_WORKSPACE}/data/")
            and SECRETS_INSIDE not in map(str, PurePosixPath(one.target).parents)
        ]
        return (*self.folders(node, place), *theirs)


@dataclass(frozen=True, kw_only=True)
class ModelPlace:
    """Machine, checkpoint and limits of a model's use."""

    held: CheckpointCopy
    image: str
    device: str
    limits: ContainerLimits
    scratch: str = ""
    """Temporary folder on the node, with `in` for the user's files."""
    user: str = ""
    """uid:gid of the node's user."""

    @property
    def project(self) -> str:
        """The project's folder on the node, which holds runs/RUN/checkpoints/STEP."""
        return str(PurePosixPath(self.held.folder).parents[3])

    def out(self, action: str) -> str:
        """Folder that the container writes into: `orch` lists it as it lists the folder of a run."""
        return f"{self.scratch}/runs/{self.held.run_id}/{action}"


def use_container(use: ModelUse, place: ModelPlace, words: tuple[str, ...], name: str) -> ContainerSpec:
    """Container without network that sees the checkpoint, data and code read-only, and writes into one folder.

    It does not take the name that locks the node, so that another run may train there.
    """
    part = next((one for one in use.plan.nodes if one.node == place.held.node), None)
    return ContainerSpec(
        name=name,
        image=place.image,
        command=("python", "-P", "-m", "trainer", *words),
        environment={"OMP_NUM_THREADS": str(max(1, int(place.limits.cpus)))},
        labels={LABEL_PURPOSE: use.action},
        mounts=(
            Mount(source=place.held.folder, target=MODEL, read_only=True),
            Mount(source=f"{place.scratch}/in", target=FILES, read_only=True),
            Mount(source=place.out(use.action), target=OUT),
            *use.mounts(place.held.node, place.project, part),
        ),
        working_dir=CODE if use.workload == "custom" else CONTAINER_WORKSPACE,
        user=place.user,
        gpus=place.device == "cuda",
        network="none",
        **asdict(place.limits),
    )


def _module(command: Sequence[str]) -> tuple[str, ...]:
    """Return the options of `custom` that say which model was trained."""
    found = ["--module", option(command, "--module") or ""]
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == "--set":
            found += ["--set", value if equals else next(iter(command[at + 1 : at + 2]), "")]
    return tuple(found)
