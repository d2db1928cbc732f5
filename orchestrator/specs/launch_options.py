"""The options of a launch, each declared once: default, name on the command line, bounds and help text.

Commands derive their parameters from these fields (`cli/flags.py`); a request and a plan inherit `RunSettings`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from contract.downloads import Source, read_source
from orchestrator.specs.container import Mount
from orchestrator.specs.data import DataFolder, read_data_options
from orchestrator.specs.errors import UsageError
from orchestrator.specs.image import IMAGE_EXPECTED, IMAGE_REFERENCE
from orchestrator.specs.labels import MOST_NODES
from orchestrator.specs.numbers import duration_s, whole
from orchestrator.specs.program import Program
from orchestrator.specs.secret import NAME, Secret

DEFAULT_COMMAND = ("gpt2",)
DEFAULT_DATA = Path("Data")
ABSENCE_S = 900
SHORTEST_HANG_S = 10
"""Import of torch alone takes some seconds without a line."""

LANGUAGE = ("LANG", "LC_ALL")
"""Variables of the caller that every run gets."""
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
"""Variables of `--offline`, for the libraries of Hugging Face."""
SYNC_OUTPUTS = ("results", "all", "off")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Form of a field on the command line."""

    name: str
    help: str
    metavar: str | None = None
    least: int | None = None
    """Smallest number that may be typed."""
    most: int | None = None
    """Largest number that a plan may have: a plan is read from nodes, and its numbers are counted up to."""
    parse: Callable[[Any], Any] | None = None
    """Makes the value of the field from the text, or from the list of texts of an option that may be repeated."""
    repeated: bool = False
    off: str = ""
    """Another option, without a value, that sets the field to `off`."""

    def words(self, value: Any) -> tuple[str, ...]:
        """The option as one types it for a value of the field; empty where no option is needed for it."""
        if value is False or value == "":
            return ()
        if value is True:
            return (self.name,)
        if self.off and value == "off":
            return (self.off,)
        if isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        each = value if isinstance(value, list | tuple) else [value]
        return tuple(word for one in each for word in (self.name, getattr(one, "typed", str(one))))


def _profile(text: str) -> str:
    if text not in ("", "auto", "cpu", "cuda"):
        raise UsageError(f"--profile {text}: expected cpu, cuda or auto")
    return "" if text == "auto" else text


def _image(text: str) -> str:
    if text and not IMAGE_REFERENCE.fullmatch(text):
        raise UsageError(f"--image {text}: expected {IMAGE_EXPECTED}")
    return text


def _mounts(texts: Sequence[str]) -> tuple[Mount, ...]:
    mounts = []
    for text in texts:
        parts = text.split(":")
        if len(parts) not in (2, 3) or not parts[0].startswith("/") or not parts[1].startswith("/"):
            hint = _instead_of_mount(text)
            raise UsageError(f"--mount {text}: expected /folder/of/the/node:/folder/inside[:ro]", hint=hint)
        if parts[2:] not in ([], ["ro"], ["rw"]):
            raise UsageError(f"--mount {text}: after the second colon comes ro or rw")
        mounts.append(Mount(source=parts[0], target=parts[1], read_only=parts[2:] == ["ro"]))
    return tuple(mounts)


def _instead_of_mount(text: str) -> str:
    """The option for `./DIR:/DIR`, or for the keys of Docker's --mount; empty where there is none."""
    keys = dict(part.partition("=")[::2] for part in text.split(",")) if "=" in text else {}
    source = keys.get("source") or keys.get("src") or ("" if keys else text.partition(":")[0])
    target = keys.get("target") or keys.get("dst") or keys.get("destination") or ""
    if source.startswith("/") and target:
        return f"--mount {shlex.quote(source + ':' + target + ':ro' * bool({'ro', 'readonly'} & keys.keys()))}"
    if not source or source.startswith("/"):
        return ""
    return f"--data {shlex.quote(source)}   # sends this computer's folder to every node"


def _data(texts: Sequence[str]) -> tuple[DataFolder, ...]:
    try:
        return read_data_options(texts)
    except ValueError as error:
        raise UsageError(f"--data {error}") from None


def _outputs(text: str) -> str:
    if text not in SYNC_OUTPUTS:
        raise UsageError(f"--sync-outputs {text}: expected {', '.join(SYNC_OUTPUTS)}")
    return text


def _environment(texts: Sequence[str]) -> dict[str, str]:
    variables = {}
    for text in texts:
        key, equals, variables[key] = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--env {key}: expected KEY=VALUE")
    return variables


def _sources(texts: Sequence[str]) -> tuple[Source, ...]:
    sources = []
    for text in texts:
        try:
            sources.append(read_source(text))
        except ValueError as error:
            raise UsageError(f"--fetch-once {text}: {error}") from None
    return tuple(sources)


def _secrets(texts: Sequence[str]) -> tuple[Secret, ...]:
    secrets = []
    for text in texts:
        name, equals, file = text.partition("=")
        if not NAME.fullmatch(name) or (equals and not file):
            raise UsageError(
                f"--secret {name}: expected NAME or NAME=FILE", hint="never write the value itself on a command line"
            )
        secrets.append(Secret(name=name, file=str(Path(file).expanduser().absolute()) if file else ""))
    return tuple(secrets)


def _checkpoint(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,12})(?::([0-9a-f]{0,64}))?", text)
    if not match:
        raise UsageError(f"--checkpoint {text}: expected STEP, or STEP:SHA256 with the beginning of its hash")
    return int(match[1]), match[2] or ""


def _duration(text: str) -> int:
    seconds = whole(text, most=100_000_000)
    seconds = duration_s(text) if seconds is None else seconds
    if seconds is None or 0 < seconds < SHORTEST_HANG_S:
        raise UsageError(f"--hang-timeout {text}: expected at least {SHORTEST_HANG_S} seconds, such as 90, 10m or 2h")
    return seconds


def _option(default: Any, name: str, **how: Any) -> Any:
    """A field with a flag; a mutable default is copied for each object."""
    metadata = {"flag": Flag(name=name, **how)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Options that hold for all attempts of a run: its plan keeps them for a resumed attempt."""

    profile: str = _option(
        "",
        "--profile",
        parse=_profile,
        metavar="cpu|cuda",
        help="Image for all nodes (default: chosen by each node's device).",
    )
    """Image for all nodes: cpu or cuda; empty: by the device of each node."""
    image: str = _option(
        "",
        "--image",
        parse=_image,
        metavar="REF",
        help="An image of your own with torch, for all nodes (default: image.reference of the inventory, otherwise the"
        " one of `orch build`).",
    )
    """Name of an image that orch has not built; empty: its own."""
    mounts: tuple[Mount, ...] = _option(
        (),
        "--mount",
        parse=_mounts,
        repeated=True,
        metavar="SOURCE:TARGET[:ro]",
        help="Bind mount from each node. Repeatable.",
    )
    environment: Mapping[str, str] = _option(
        {},
        "--env",
        parse=_environment,
        repeated=True,
        metavar="KEY=VALUE",
        help="Environment variable for the containers. Repeatable.",
    )
    """The user's own variables."""
    secrets: tuple[Secret, ...] = _option(
        (),
        "--secret",
        parse=_secrets,
        repeated=True,
        metavar="NAME[=FILE]",
        help="Your environment variable NAME, or FILE, as /run/secrets/NAME in the containers; not stored. Repeatable.",
    )
    """Secrets by name: their values are read when the run starts, and passed as files."""
    max_restarts: int = _option(
        3,
        "--max-restarts",
        least=0,
        most=1_000_000,
        metavar="N",
        help="Restarts allowed without a new checkpoint in between.",
    )
    """Restarts of the ranks without a new checkpoint, and Docker's restarts of a container that ended otherwise."""
    node_timeout_s: int = _option(
        120,
        "--node-timeout",
        least=1,
        most=100_000_000,
        metavar="SECONDS",
        help="How long to wait for a lost node; then the run ends, or continues without it (--min-nodes).",
    )
    hang_timeout_s: int = _option(
        0,
        "--hang-timeout",
        parse=_duration,
        most=100_000_000,
        metavar="DURATION",
        help="Restart all ranks if they are stuck for so long: 90, 10m, 2h (default: never). A script that computes "
        "and prints nothing is not stuck.",
    )
    """Time without progress of any rank after which all restart, if they are stuck; 0: they do not."""
    independent: bool = _option(
        False, "--independent", help="Each rank trains its own model, as intended: do not report it."
    )
    """True if ranks that exchange no gradients are intended."""
    no_warm_start: bool = _option(
        False,
        "--no-warm-start",
        help="Start each rank as a Python of its own, instead of forking it from a process that has imported torch.",
    )
    """True if every rank imports torch itself, to find out if the fork is the reason of a fault."""
    sync_outputs: str = _option(
        "results",
        "--sync-outputs",
        parse=_outputs,
        off="--no-sync-outputs",
        metavar="results|all",
        help="Before a restart, copy files that your script wrote on rank 0's node to nodes without them; all: those of"
        " other ranks, too.",
    )
    """Files that a script wrote, copied to nodes without them before its ranks start again: `results`, of rank 0's
    node; `all`, of other nodes, too; `off`."""
    min_nodes: int = _option(
        0,
        "--min-nodes",
        least=1,
        most=MOST_NODES,
        metavar="N",
        help="Continue without lost nodes while this many are left.",
    )
    """Nodes that the run can continue with after the others were given up; 0: it needs all of them."""
    replicas: int = _option(
        1,
        "--checkpoint-copies",
        least=0,
        most=MOST_NODES,
        metavar="N",
        help="Other nodes that get a copy of each checkpoint.",
    )

    def settings(self) -> dict[str, Any]:
        """These fields alone, by name: a request and a plan inherit them from the options of a launch."""
        return {each.name: getattr(self, each.name) for each in fields(RunSettings)}

    def words(self) -> tuple[str, ...]:
        """The options as one types them, those with another value than the default."""
        given = {each.name: getattr(self, each.name) for each in fields(RunSettings)}
        given = {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}
        return tuple(word for name, value in given.items() for word in _FLAGS[name].words(value))

    @property
    def absence_limit_s(self) -> int:
        """Seconds that nodes wait for an absent one: longer than the run's supervisor on the controller does."""
        return max(ABSENCE_S, self.node_timeout_s + 60)


_DEFAULTS = RunSettings()
_FLAGS: Mapping[str, Flag] = {each.name: each.metadata["flag"] for each in fields(RunSettings)}
NUMBERS: Mapping[str, Flag] = {
    each.name: each.metadata["flag"] for each in fields(RunSettings) if type(each.default) is int
}
"""The settings that are numbers, by field."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(RunSettings):
    """The options of `orch launch`; other commands that start containers have some of them.

    Fields without a flag have the one that other commands have, too: nodes, engine.
    """

    command: tuple[str, ...] = ()
    nodes: str | None = None
    name: str = _option("", "--name", help="Beginning of the run's id.")
    on: str = _option("", "--on", metavar="CLUSTER", help="Run as one job on this cluster of the inventory.")
    """Name of a cluster; empty: the run starts on nodes of the inventory."""
    master: str = _option("", "--master", metavar="NODE", help="Node of rank 0 (default: the first).")
    master_port: int | None = _option(
        None,
        "--master-port",
        least=1,
        most=65534,
        metavar="PORT",
        help="Port on rank 0's node (default: the next free one from 12355). A restart takes the next free one.",
    )
    workdir: Path | None = _option(  # noqa: RUF009  # a dataclass field
        None, "--workdir", metavar="DIR", help="Your code, copied to every node (default: the current folder)."
    )
    data: tuple[DataFolder, ...] = _option(
        (),
        "--data",
        parse=_data,
        repeated=True,
        metavar="[NAME=]DIR",
        help="Folder of data, copied to nodes without it. A script reads it by the same path or by ORCH_DATA_DIR; it is"
        " read-only. Repeatable (default: ./Data, if prepared).",
    )
    """Folders with data as they were typed."""
    shard: bool = _option(
        False, "--shard", help="Copy to each node only its part of the training samples (default: all of them)."
    )
    fetch_once: tuple[Source, ...] = _option(
        (),
        "--fetch-once",
        parse=_sources,
        repeated=True,
        metavar="hf:ORG/NAME|URL",
        help="Model or data set of Hugging Face, or file for torch.hub: downloaded on one node before the start, copied"
        " to the others; implies --offline. Repeatable.",
    )
    offline: bool = _option(
        False, "--offline", help="Let Hugging Face's libraries use what the nodes have, without asking its server."
    )
    checkpoint: tuple[int, str] | None = _option(
        None,
        "--checkpoint",
        parse=_checkpoint,
        metavar="STEP[:SHA256]",
        help="Checkpoint to resume from, on record or not (default: the newest that the run has reported).",
    )
    """Step, and the beginning of the hash of its manifest."""
    resume: str = _option("", "--resume", metavar="RUN", help="Resume this run, as `orch resume` does.")
    engine: str = ""
    given: frozenset[str] = frozenset()
    """Names of the fields that were on the command line."""

    @cached_property
    def program(self) -> Program:
        """The command that was given, or the default one, classified."""
        return Program.of(self.command or DEFAULT_COMMAND)

    def program_after(self, earlier: Program | None) -> Program:
        """The program of a run that resumes or repeats this one: its own where the command line gives none."""
        return earlier if earlier and not self.command else self.program

    def resolved(self, earlier: RunSettings | None) -> LaunchOptions:
        """Return these options with the settings of an earlier attempt where the command line does not give them."""
        recorded = earlier.settings().items() if earlier else ()
        return replace(self, **{name: value for name, value in recorded if name not in self.given})

    def attempt_words(self) -> tuple[str, ...]:
        """The options that hold for one attempt and leave no mark of their own in its plan, as one types them."""
        sources = tuple(source.text for source in self.fetch_once)
        given = {"master": self.master, "master_port": self.master_port or "", "fetch_once": sources}
        flags = {each.name: each.metadata["flag"] for each in fields(self) if each.name in given}
        return tuple(word for name, value in given.items() for word in flags[name].words(value))
