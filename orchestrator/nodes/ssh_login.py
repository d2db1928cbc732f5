"""SSH login: the user's keys, which of them are locked, and why a connection or a login was refused."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import IncompatiblePeer, NoValidConnectionsError

from orchestrator.nodes import host_keys
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

DEFAULT_NAMES = ("id_rsa", "id_ecdsa", "id_ed25519")
"""Files that paramiko reads in ~/.ssh if no key is named."""
NOT_UNDERSTOOD = (ValueError, paramiko.SSHException, UnknownKeyType)
"""Exceptions for a file that is not a private key."""


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Available private keys."""

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
    """Keys that paramiko would use: the named files, otherwise the default names, and the ssh-agent's."""
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
        why = "is not a private key"
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
    jump = f"-o ProxyJump={shlex.quote(spec.jump)} " if spec.jump else ""
    return f"ssh-copy-id {named}{jump}-p {spec.port} {user}@{spec.address}"


def _is_locked(file: Path) -> bool:
    """Return whether the key needs a passphrase. OSError or one of NOT_UNDERSTOOD if the file is not a key."""
    try:
        paramiko.PKey.from_path(file)
    except TypeError:  # what cryptography raises for a key that needs a password and was given none
        return True
    return False


def _public(file: Path) -> bytes | None:
    """Public key from the `.pub` file; None if there is none."""
    with suppress(OSError, ValueError):
        _, text = Path(f"{file}.pub").read_text(encoding="utf-8", errors="replace").split()[:2]
        return base64.b64decode(text)
    return None


def _agents() -> frozenset[bytes]:
    with suppress(OSError, paramiko.SSHException), closing(paramiko.Agent()) as agent:
        return frozenset(key.asbytes() for key in agent.get_keys())
    return frozenset()


REFUSALS = (paramiko.SSHException, OSError, EOFError)
"""Exceptions of paramiko for a failed connection."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A connection that could not be made."""

    spec: NodeSpec
    user: str
    error: BaseException
    waited_s: float
    keys: Keys
    """Keys that were available for the login."""
    at_login: bool = False
    """True if host keys were exchanged and the connection still stands: what failed is the login.

    The exception does not show it: paramiko raises the error of the last key, possibly a parse error.
    """
    accept_by: str = ""
    """Command that accepts the host key (default: `orch trust` of the node): a jump host is no node."""

    @property
    def place(self) -> str:
        return f"{self.user}@{self.spec.address}:{self.spec.port}"


def refusal(attempt: Attempt) -> NodeUnreachableError:
    """Error to raise; classified by the exception's type and the available keys, never by its text."""
    error, spec = attempt.error, attempt.spec
    if isinstance(error, paramiko.BadHostKeyException):
        return host_keys.changed_key(
            spec.name, error.hostname, spec.port, [error.expected_key], error.key, then=attempt.accept_by
        )
    if attempt.at_login:
        return _login(attempt)
    reach = _kind(error)
    what, hint = "no answer", "is it on, and its address right in the inventory?"
    if isinstance(error, TimeoutError):
        what = f"no answer in {attempt.waited_s:.0f} s"
    elif reach is Reach.REFUSED:
        what, hint = "refused the connection", "on it: sudo systemctl enable --now ssh; or its port in the inventory."
    elif isinstance(error, paramiko.ChannelException):
        reach, what = Reach.NO_ANSWER, f"cannot be reached from its jump host {spec.jump}"
        hint = "is it on, and does that host allow it (AllowTcpForwarding)?"
    elif isinstance(error, IncompatiblePeer):
        what, hint = "has no algorithm of SSH in common with orch", "update the SSH server there."
    elif reach is Reach.OTHER:
        what, hint = "answers, and not as an SSH server does", "is its port right in the inventory?"
    bare = reach is Reach.OTHER and not isinstance(error, IncompatiblePeer)  # paramiko's own text adds nothing
    return NodeUnreachableError(
        f"{attempt.place} {what}{'' if bare else f' ({plain(error)})'}",
        reach=reach,
        node=spec.name,
        hint=f"{hint} Try: ssh {f'-J {shlex.quote(spec.jump)} ' if spec.jump else ''}-p {spec.port} "
        f"{attempt.user}@{spec.address}",
    )


def _login(attempt: Attempt) -> NodeUnreachableError:
    """Error of a refused login: no key, a locked key, or a key that the machine does not know."""
    spec, keys, copy = attempt.spec, attempt.keys, copy_key(attempt.spec, attempt.user)
    if not keys:
        return NodeUnreachableError(
            f"{attempt.place}: you have no SSH key to log in with",
            reach=Reach.NO_KEY,
            node=spec.name,
            hint=f"ssh-keygen -t ed25519 && {copy}",
        )
    if locked := keys.locked:
        names = ", ".join(map(str, locked))
        agent = "" if os.environ.get("SSH_AUTH_SOCK") else 'eval "$(ssh-agent)"; '
        return NodeUnreachableError(
            f"{attempt.place}: locked by a passphrase, so not tried: {names}",
            reach=Reach.KEY_LOCKED,
            node=spec.name,
            hint=f"{agent}ssh-add {' '.join(shlex.quote(str(file)) for file in locked)}",
        )
    tried = spec.identity or "your agent's keys and ~/.ssh/id_*"
    return NodeUnreachableError(
        f"{attempt.place} refused the key (tried {tried})", reach=Reach.LOGIN, node=spec.name, hint=copy
    )


def plain(error: BaseException) -> str:
    """First line of the error, or the name of its type."""
    text = getattr(error, "strerror", None) or getattr(error, "text", None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _kind(error: BaseException) -> Reach:
    """Paramiko tries every address of a host and folds what each met into one error."""
    if isinstance(error, NoValidConnectionsError):
        met = set(map(type, error.errors.values()))
        return Reach.REFUSED if met == {ConnectionRefusedError} else Reach.NO_ANSWER
    if isinstance(error, ConnectionRefusedError):
        return Reach.REFUSED
    return Reach.NO_ANSWER if isinstance(error, OSError) else Reach.OTHER
