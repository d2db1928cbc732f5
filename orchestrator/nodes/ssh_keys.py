"""The user's own keys: which there are to log in with, and which of them nobody has unlocked."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.pkey import UnknownKeyType

from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

DEFAULT_NAMES = ("id_rsa", "id_ecdsa", "id_ed25519")
"""What paramiko looks for in ~/.ssh where no key is named."""
NOT_UNDERSTOOD = (ValueError, paramiko.SSHException, UnknownKeyType)
"""What reading a file as a private key raises where it is none."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """What there is to log in with."""

    files: Sequence[Path]
    in_agent: frozenset[bytes]
    """Public halves that the user's ssh-agent holds."""

    def __bool__(self) -> bool:
        return bool(self.files or self.in_agent)

    @property
    def locked(self) -> tuple[Path, ...]:
        """Files behind a passphrase that the agent does not hold either: they could not be tried."""
        return tuple(file for file in self.files if self._is_locked(file))

    def _is_locked(self, file: Path) -> bool:
        with suppress(OSError, *NOT_UNDERSTOOD):
            return _is_locked(file) and _public(file) not in self.in_agent
        return False


def keys_for(connect_kwargs: Mapping[str, Any]) -> Keys:
    """As paramiko finds them: the files named, else those with their usual names; and the agent's."""
    named = connect_kwargs.get("key_filename") or [f"~/.ssh/{name}" for name in DEFAULT_NAMES]
    paths = [Path(one).expanduser() for one in named]
    return Keys(files=[path for path in paths if path.is_file()], in_agent=_agents())


def drop_missing(connect_kwargs: dict[str, Any]) -> None:
    """Leave out files that ~/.ssh/config names and that are not there: as ssh does, and unlike paramiko."""
    if named := connect_kwargs.get("key_filename"):
        connect_kwargs["key_filename"] = [one for one in named if Path(one).expanduser().is_file()]


def require_identity(spec: NodeSpec, user: str) -> None:
    """NodeUnreachableError where the inventory names a key that is not there, or is none."""
    if not spec.identity:
        return
    file = Path(spec.identity).expanduser()
    try:
        _is_locked(file)
        return
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except NOT_UNDERSTOOD:
        why = "is no private key"
    raise NodeUnreachableError(
        f"the key that the inventory names for {user}@{spec.address}:{spec.port}, {spec.identity}, {why}",
        reach=Reach.IDENTITY_MISSING,
        node=spec.name,
        hint=f"correct nodes.{spec.name}.identity, or make that key: ssh-keygen -t ed25519 -f {shlex.quote(str(file))}"
        f" && {copy_key(spec, user)}",
    )


def copy_key(spec: NodeSpec, user: str) -> str:
    """The line that brings the public half of the user's key to the node."""
    named = f"-i {shlex.quote(str(Path(spec.identity).expanduser()))}.pub " if spec.identity else ""
    return f"ssh-copy-id {named}-p {spec.port} {user}@{spec.address}"


def _is_locked(file: Path) -> bool:
    """OSError, or one of NOT_UNDERSTOOD, where it is no key."""
    try:
        paramiko.PKey.from_path(file)
    except TypeError:  # what cryptography raises for a key that needs a password and was given none
        return True
    return False


def _public(file: Path) -> bytes | None:
    """The public half that lies beside it; None where there is none."""
    with suppress(OSError, ValueError):
        _, text = Path(f"{file}.pub").read_text(encoding="utf-8", errors="replace").split()[:2]
        return base64.b64decode(text)
    return None


def _agents() -> frozenset[bytes]:
    with suppress(OSError, paramiko.SSHException), closing(paramiko.Agent()) as agent:
        return frozenset(key.asbytes() for key in agent.get_keys())
    return frozenset()
