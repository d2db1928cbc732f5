"""The ssh command line for a node of the inventory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from orchestrator.nodes.host_keys import known_files
from orchestrator.specs.inventory import NodeSpec


def ssh_command(spec: NodeSpec, command: Sequence[str] = (), *, terminal: bool = False) -> tuple[str, ...]:
    """Return the command that logs in to the node, or runs `command` there, and refuses unknown and changed host keys.

    `terminal`: give `command` a terminal; a login has one anyway.
    """
    known = " ".join(f'"{file}"' for file in known_files())
    options = ["-o", "StrictHostKeyChecking=yes", *(["-o", f"UserKnownHostsFile={known}"] if known else [])]
    if spec.identity:
        options += ["-i", str(Path(spec.identity).expanduser()), "-o", "IdentitiesOnly=yes"]
    if spec.jump:
        options += ["-J", spec.jump]
    target = f"{spec.user}@{spec.address}" if spec.user else spec.address
    # sshd gives the words to a shell as one line: they are quoted here, once.
    words = [*(["-t"] if terminal else []), *(["-p", str(spec.port)] if "port" in spec.model_fields_set else [])]
    return ("ssh", *words, *options, "--", target, *((shlex.join(command),) if command else ()))
