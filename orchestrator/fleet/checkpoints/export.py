"""A checkpoint's weights as safetensors: written in the training image on a node that holds it, then brought here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from contract.checkpoint import CheckpointFile
from orchestrator.fleet.checkpoints.copy import Relay, telling
from orchestrator.fleet.fan_out import Notify
from orchestrator.nodes.interface import Node, Progress
from orchestrator.plan.checkpoints import EXPORTED, export_container
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.container_limits import container_limits
from orchestrator.specs.errors import CommandFailedError, ConfigError, OrchError, PreflightError, RunFailedError
from orchestrator.specs.inventory import Limits

TIMEOUT_S = 600.0

# Constants. $1: the folder of the checkpoint; $2: a word for the folder that the container may write into. The answer
# is that folder, then the user's ids.
_BEGIN = 'umask 077; cd -- "$1/../.." && mkdir -- ".export-$2" && cd -- ".export-$2" && pwd -P && id -u && id -g'
_MEASURE = 'cd -- "$1" && stat -c %s -- "$2" && sha256sum -- "$2"'
_MEASURED = re.compile(r"(?P<size>[0-9]{1,15})\n(?P<sha256>[0-9a-f]{64}) ")


def image_for(node: Node, wanted: Sequence[str]) -> str:
    """The first of these images (ids or tags) that the node has; empty where it runs processes. `PreflightError` where
    it has none."""
    if node.engine.facts().kind == "process":
        return ""
    for reference in filter(None, wanted):
        if image := node.engine.image(reference):
            return image.id
    raise PreflightError("it has none of this project's images", node=node.name, hint="orch build")


def export(node: Node, held: CheckpointCopy, *, image: str, limits: Limits, target: Path, notify: Notify) -> int:
    """Export the weights of `held` on `node` to the file `target` on the controller; the number of bytes written.

    `target` is written completely or not at all. ConfigError: the trainer refuses the checkpoint. RunFailedError: it
    fails.
    """
    begun = node.run(["sh", "-c", _BEGIN, "sh", held.folder, secrets.token_hex(4)])
    scratch, uid, gid = begun.check("making a folder for the export").split("\n")[:3]
    try:
        notify(node.name, Progress(text=f"{held.name}: exporting"))
        machine = node.engine.facts()
        within = container_limits(limits, cpus=machine.cpus, memory_mib=machine.memory_mib)
        spec = export_container(held, image=image, user=f"{uid}:{gid}", limits=within, scratch=scratch)
        ended = node.engine.run_once(spec, timeout_s=TIMEOUT_S)
        if ended.exit_code:
            last = (ended.stderr.strip() or ended.stdout.strip()).rsplit("\n", 1)[-1]
            kind = ConfigError if ended.exit_code == ConfigError.exit_code else RunFailedError
            raise kind(f"exporting {held.name} failed with exit code {ended.exit_code}: {last}", node=node.name)
        return _fetch(node, scratch, target, notify)
    finally:
        with suppress(OrchError):
            node.run(["rm", "-rf", "--", scratch])


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
