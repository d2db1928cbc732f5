"""Why a connection could not be made: paramiko's many exceptions as one error that says what to do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.nodes import host_keys
from orchestrator.nodes.ssh_keys import Keys, copy_key
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach

REFUSALS = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises where there is no connection."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A connection that could not be made."""

    spec: NodeSpec
    user: str
    error: BaseException
    waited_s: float
    keys: Keys
    """What there was to log in with."""
    at_login: bool = False
    """Whether host keys were exchanged and the connection still stands: what failed is the login.

    The exception does not tell: paramiko raises what the last key met, such as another kind's reader.
    """

    @property
    def place(self) -> str:
        return f"{self.user}@{self.spec.address}:{self.spec.port}"


def refusal(attempt: Attempt) -> NodeUnreachableError:
    """The error to raise for it; its kind is told by the exception's type and what was there, never by its words."""
    error, spec = attempt.error, attempt.spec
    if isinstance(error, paramiko.BadHostKeyException):
        return host_keys.changed_key(spec.name, error.hostname, spec.port, [error.expected_key], error.key)
    if attempt.at_login:
        return _login(attempt)
    reach = _kind(error)
    what, hint = "no answer", "is it on, and its address right in the inventory?"
    if isinstance(error, TimeoutError):
        what = f"no answer in {attempt.waited_s:.0f} s"
    if reach is Reach.REFUSED:
        what, hint = "refused the connection", "on it: sudo systemctl enable --now ssh; or its port in the inventory."
    if reach is Reach.OTHER:
        what, hint = "answers, and not as an SSH server does", "is its port right in the inventory?"
    return NodeUnreachableError(
        f"{attempt.place} {what} ({plain(error)})",
        reach=reach,
        node=spec.name,
        hint=f"{hint} Try: ssh -p {spec.port} {attempt.user}@{spec.address}",
    )


def _login(attempt: Attempt) -> NodeUnreachableError:
    """It speaks SSH, and let nobody in: without a key, with one that is locked, or with one that it does not know."""
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
        return NodeUnreachableError(
            f"{attempt.place}: locked by a passphrase, so not tried: {names}",
            reach=Reach.KEY_LOCKED,
            node=spec.name,
            hint=f"ssh-add {' '.join(shlex.quote(str(file)) for file in locked)}",
        )
    tried = spec.identity or "your agent's keys and ~/.ssh/id_*"
    return NodeUnreachableError(
        f"{attempt.place} refused the key (tried {tried})", reach=Reach.LOGIN, node=spec.name, hint=copy
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
