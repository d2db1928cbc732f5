"""Use a trained model, or export its weights, on a node that holds its checkpoint, and bring what is written to the
controller."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from contract.checkpoint import CheckpointFile
from orchestrator.fleet.checkpoints.copy import Relay, telling
from orchestrator.fleet.checkpoints.survey import newest_sound
from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.runs.bring_results import bring_results
from orchestrator.fleet.runs.results import find_results
from orchestrator.nodes.interface import MIB, Completed, Node, Progress
from orchestrator.plan.checkpoints import EXPORTED, export_container
from orchestrator.plan.model_use import FILES, OUT, ModelPlace, ModelUse, use_container
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container_limits import container_limits
from orchestrator.specs.errors import (
    CommandFailedError,
    ConfigError,
    OrchError,
    PreflightError,
    RunFailedError,
    UsageError,
)
from orchestrator.specs.inventory import Limits
from orchestrator.specs.labels import LABEL_RUN
from orchestrator.specs.run import State

TIMEOUT_S = 3600.0
LINES_OF_AN_ERROR = 6
KILLED = 137
"""Exit code after SIGKILL."""
TORCH = 600 * MIB
"""Bytes that torch takes before it has loaded a model."""

# Constants. The answer: kB of available memory, then those of the arguments that are no folder.
_LOOK = r"""
sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo
for folder in "$@"; do [ -d "$folder" ] || printf '%s\n' "$folder"; done
"""
# $1: the folder of the checkpoint; $2: a word for the temporary folder; $3: the run; $4: the action.
_BEGIN = (
    'umask 077; cd -- "$1/../.." && mkdir -- ".use-$2" && cd -- ".use-$2" && mkdir -p -- in "runs/$3/$4"'
    " && pwd -P && id -u && id -g"
)
# $1: a folder; $2: a file in it.
_MEASURE = 'cd -- "$1" && stat -c %s -- "$2" && sha256sum -- "$2"'
_MEASURED = re.compile(r"(?P<size>[0-9]{1,15})\n(?P<sha256>[0-9a-f]{64}) ")


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Input of the trainer."""

    options: Sequence[tuple[str, ...]] = ((),)
    """Options of each call of the trainer."""
    files: Sequence[Path] = ()
    """Files of the controller, of different names."""


def chosen_copies(
    nodes: Sequence[Node], held: Sequence[CheckpointCopy], run_id: str, wanted: str
) -> tuple[CheckpointCopy, ...]:
    """Copies with correct hashes of the checkpoint `wanted`: `newest`, `best`, or its name or step.

    UsageError: no name of a checkpoint. RunFailedError: no node holds a sound one.
    """
    step = None
    if wanted == "best":
        step = next((one.step for one in held if one.best), -1)
    elif wanted != "newest":
        found = re.fullmatch(r"(?:step-)?([0-9]{1,12})", wanted)
        if not found:
            raise UsageError(f"--checkpoint {wanted}: expected newest, best, or a name such as step-00000100")
        step = int(found[1])
    damaged = [one for one in held if one.problem]
    sound = newest_sound(nodes, held, step, damaged.append)
    if not sound:
        there = ", ".join(dict.fromkeys(f"{one.name} on {one.node}" for one in held if not one.problem)) or "none"
        spoilt = "".join(f"; damaged: {one.name} on {one.node} ({one.problem})" for one in damaged)
        raise RunFailedError(
            f"no node holds a sound checkpoint {wanted!r} of run {run_id}; found: {there}{spoilt}",
            hint=f"orch checkpoints ls {run_id}",
        )
    return sound


def image_for(node: Node, wanted: Sequence[str]) -> str:
    """The first of these images (ids or tags) that the node has; empty where it runs processes. `PreflightError` where
    it has none."""
    if node.engine.facts().kind == "process":
        return ""
    for reference in filter(None, wanted):
        if image := node.engine.image(reference):
            return image.id
    raise PreflightError("it has none of this project's images", node=node.name, hint="orch build")


def running_on(node: Node) -> str:
    """Id of a run that has a running container on this node; empty if there is none."""
    held = node.engine.containers({LABEL_RUN: ""})
    return next((one.labels[LABEL_RUN] for one in held if one.state is State.RUNNING), "")


def must_be_fit(node: Node, use: ModelUse, place: ModelPlace) -> None:
    """PreflightError: the node lacks memory, data or code."""
    folders = [mount.source for mount in use.folders(node.name, place.project)]
    lines = node.run(["sh", "-c", _LOOK, "sh", *folders]).check("reading memory and folders").splitlines()
    if not lines or not re.fullmatch("[0-9]{1,12}", lines[0]):
        raise CommandFailedError("its answer about memory is not valid", node=node.name)
    other = "another node that holds the checkpoint: --node NODE"
    if missing := [folder for folder in folders if folder in lines[1:]]:
        raise PreflightError(
            f"{use.action} reads {', '.join(missing)}, which does not exist", node=node.name, hint=other
        )
    held, limit = place.held, place.limits.memory_mib * MIB
    needed, free = held.size * 4 // 3 + TORCH, min(int(lines[0]) * 1024, limit)
    if needed > free:
        raise PreflightError(
            f"loading {held.name} takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are available",
            node=node.name,
            hint=f"{other}; or wait until memory is free",
        )


@contextmanager
def scratch_folder(node: Node, held: CheckpointCopy, action: str) -> Iterator[tuple[str, str]]:
    """Make a temporary folder on the node and yield it with the user's `uid:gid`; it is removed at the end."""
    word = secrets.token_hex(4)
    try:
        begun = node.run(["sh", "-c", _BEGIN, "sh", held.folder, word, held.run_id, action])
        scratch, uid, gid = begun.check("making a temporary folder").split("\n")[:3]
        yield scratch, f"{uid}:{gid}"
    finally:
        with suppress(OrchError):
            node.run(["rm", "-rf", "--", f"{held.folder}/../../.use-{word}"])


def run_model(
    node: Node,
    use: ModelUse,
    place: ModelPlace,
    given: ModelInput,
    to: Path,
    notify: Notify,
) -> list[str]:
    """Run the trainer on the node, once for each of the options, and return what each printed.

    The files that it writes come to `to`/runs/RUN/ACTION. Nothing stays on the node, whether it succeeds, fails or is
    interrupted.
    """
    held = place.held
    with scratch_folder(node, held, use.action) as (scratch, user):
        for file in given.files:
            notify(node.name, Progress(text=f"copying {file.name}"))
            node.put(file, f"{scratch}/in/{file.name}")
        place, printed = replace(place, scratch=scratch, user=user), list[str]()
        for options in given.options:
            notify(node.name, Progress(text=f"{held.name}: {use.action}"))
            words = use.command(options, [file.name for file in given.files])
            spec = use_container(use, place, words, f"orch-{use.action}-{secrets.token_hex(4)}")
            ended = node.engine.run_once(spec, timeout_s=TIMEOUT_S)
            folders = (f"{scratch}/in/", f"{place.out(use.action)}/", f"{FILES}/", f"{OUT}/")
            killed = "killed, as when memory runs out: --node NODE, or --device cpu"
            printed.append(_without(folders, _printed(ended, use.action, folders, killed=killed)))
        if not use.writes_files:
            return printed
        found = find_results([node], {node.name: scratch}, held.run_id, ())
        brought = bring_results([node], found, to, notify)
    for outcome in brought.outcomes:
        if outcome.error:
            raise outcome.error
    return printed


def export(node: Node, held: CheckpointCopy, *, image: str, limits: Limits, target: Path, notify: Notify) -> int:
    """Export the weights of `held` on `node` to the file `target` on the controller; the number of bytes written.

    `target` is written completely or not at all. ConfigError: the trainer refuses the checkpoint. RunFailedError: it
    fails.
    """
    with scratch_folder(node, held, "export") as (scratch, user):
        notify(node.name, Progress(text=f"{held.name}: exporting"))
        machine, out = node.engine.facts(), f"{scratch}/runs/{held.run_id}/export"
        within = container_limits(limits, cpus=machine.cpus, memory_mib=machine.memory_mib)
        spec = export_container(held, image=image, user=user, limits=within, scratch=out)
        _printed(node.engine.run_once(spec, timeout_s=TIMEOUT_S), f"exporting {held.name}")
        return _fetch(node, out, target, notify)


def _fetch(node: Node, scratch: str, target: Path, notify: Notify) -> int:
    measured = node.run(["sh", "-c", _MEASURE, "sh", scratch, EXPORTED], timeout_s=TIMEOUT_S)
    found = _MEASURED.match(measured.check("reading what was exported"))
    if found is None:
        raise CommandFailedError("its answer about the exported file is not valid", node=node.name)
    part = CheckpointFile(name=EXPORTED, size=int(found["size"]), sha256=found["sha256"])
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        relay = Relay(node, f"{scratch}/{EXPORTED}", part)
        with aside.open("xb") as file:
            for chunk in telling(relay.chunks(), node.name, f"bringing {target.name}", 0, part.size, notify):
                file.write(chunk)
        relay.check_source()
        relay.check_content()
        aside.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
    return part.size


def _printed(ended: Completed, action: str, folders: Sequence[str] = (), *, killed: str = "") -> str:
    """Stdout of the trainer. ConfigError, UsageError: it refuses its input; RunFailedError: it fails, with the hint
    `killed` where it was."""
    if ended.exit_code == 0:
        return ended.stdout
    lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    text = _without(folders, "\n".join(lines[-LINES_OF_AN_ERROR:])).removeprefix("error: ")
    kinds = {ConfigError.exit_code: ConfigError, UsageError.exit_code: UsageError}
    hint = killed if ended.exit_code == KILLED else ""
    raise kinds.get(ended.exit_code, RunFailedError)(
        f"{action} failed with exit code {ended.exit_code}: {text}", node=ended.node, hint=hint
    )


def _without(folders: Sequence[str], text: str) -> str:
    """The text with the files of these folders by their names alone: the folders are temporary."""
    for folder in folders:
        text = text.replace(folder, "")
    return text
