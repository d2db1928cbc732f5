"""Where a run's secrets lie: a file each in a node's memory, shown to its container alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.specs.container import Mount
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.secret import Secret

INSIDE = "/run/secrets"


def secrets_folder(uid: int, identity: RunIdentity, node: str) -> str:
    """On the node, in a tmpfs. Each attempt has its own: what ends one must not take the next one's; and so has each
    node, as some are processes of one computer."""
    return f"/dev/shm/orch-{uid}/{identity.run_id}/{identity.attempt}-{node}"  # noqa: S108  # a folder of mode 0700


def secret_mounts(secrets: Sequence[Secret], folder: str) -> tuple[Mount, ...]:
    return tuple(
        Mount(source=f"{folder}/{secret.name}", target=f"{INSIDE}/{secret.name}", read_only=True) for secret in secrets
    )


def secret_environment(secrets: Sequence[Secret]) -> dict[str, str]:
    """The convention of many images: NAME_FILE says where NAME is to be read."""
    return {f"{secret.name}_FILE": f"{INSIDE}/{secret.name}" for secret in secrets}


def secret_lines(secrets: Sequence[Secret], folder: str, reach: Sequence[str]) -> Iterator[str]:
    """The commands that hand them over, for a person to paste; `reach` brings the node's part there: `ssh …`, or `sh
    -c` here. printf is the shell's own, so that no list of processes shows what it prints."""
    for secret in secrets:
        file = shlex.quote(f"{folder}/{secret.name}")
        keep = shlex.join([*reach, f"umask 077 && mkdir -p {shlex.quote(folder)} && cat > {file} && chmod 400 {file}"])
        yield f"{keep} < {shlex.quote(secret.file)}" if secret.file else f'printf %s "${secret.name}" | {keep}'
