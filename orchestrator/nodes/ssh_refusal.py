"""Why a connection could not be made: paramiko's many exceptions as one error that says what to do."""

from __future__ import annotations

import shlex

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.nodes import host_keys
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

REFUSALS = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises where there is no connection."""


def refusal(spec: NodeSpec, user: str, error: BaseException, *, waited_s: float) -> NodeUnreachableError:
    """The error to raise for it; its kind is told by the exception's type alone."""
    if isinstance(error, paramiko.BadHostKeyException):
        return host_keys.changed_key(spec.name, spec.port, error)
    place = f"{user}@{spec.address}:{spec.port}"
    if isinstance(error, paramiko.AuthenticationException):
        tried = spec.identity or "your agent's keys and ~/.ssh/id_*"
        identity = f"-i {shlex.quote(spec.identity)}.pub " if spec.identity else ""
        return NodeUnreachableError(
            f"{place} refused the key (tried {tried})",
            reach=Reach.LOGIN,
            node=spec.name,
            hint=f"ssh-copy-id {identity}-p {spec.port} {user}@{spec.address}",
        )
    reach = _kind(error)
    what, hint = f"no answer in {waited_s:.0f} s", "is it on, and its address right in the inventory?"
    if reach is Reach.REFUSED:
        what, hint = "refused the connection", "on it: sudo systemctl enable --now ssh; or its port in the inventory."
    return NodeUnreachableError(
        f"{place} {what} ({plain(error)})",
        reach=reach,
        node=spec.name,
        hint=f"{hint} Try: ssh -p {spec.port} {user}@{spec.address}",
    )


def plain(error: BaseException) -> str:
    """Its first line, or at least its name."""
    text = getattr(error, "strerror", None) or str(error)
    return text.splitlines()[0] if text else type(error).__name__


def _kind(error: BaseException) -> Reach:
    """Paramiko tries every address of a host and folds what each met into one error."""
    if isinstance(error, NoValidConnectionsError):
        met = set(map(type, error.errors.values()))
        return Reach.REFUSED if met == {ConnectionRefusedError} else Reach.NO_ANSWER
    if isinstance(error, ConnectionRefusedError):
        return Reach.REFUSED
    return Reach.NO_ANSWER if isinstance(error, OSError) else Reach.OTHER
