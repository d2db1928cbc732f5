"""The one error tree. Every error says what happened, where, and what to do next; its class is its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from orchestrator.specs.reach import Reach

EXIT_OK = 0
EXIT_INTERRUPTED = 130


class OrchError(Exception):
    """Base of all errors that a user may meet.

    `message` says what happened and on which node; `hint` says what to do next (a command where there is one).
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", node: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.message}"


class BugError(OrchError):
    """A fault of orch itself: an exception that no code expected."""

    exit_code = 1


class RunFailedError(OrchError):
    """The training, or a check, failed."""

    exit_code = 1


class UsageError(OrchError):
    """The command line asks for something that makes no sense."""

    exit_code = 2


class ConfigError(OrchError):
    """The inventory or another file of the user's is wrong. `problems` holds every one of them, each with its place."""

    exit_code = 3

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str = "", node: str = "") -> None:
        super().__init__(message, hint=hint, node=node)
        self.problems = tuple(problems)


class UnkeptError(ConfigError):
    """Lines of a run cannot be written down on this computer."""


class PreflightError(OrchError):
    """A node is out of reach or unfit; nothing was started."""

    exit_code = 4


class NodeUnreachableError(PreflightError):
    """No connection to a node: no answer, refused key, unknown or changed host key. `reach` says which of them."""

    def __init__(self, message: str, *, reach: Reach = Reach.OTHER, hint: str = "", node: str = "") -> None:
        super().__init__(message, hint=hint, node=node)
        self.reach = reach


class EngineError(PreflightError):
    """A node's container engine is missing, not running, not ours to use, or refused a request."""


class EngineRefusedError(EngineError):
    """A node's container engine runs, and answered a request with an error."""


class SudoRefusal(Enum):
    """Reason for which `sudo` refuses."""

    DOUBTED = auto()
    """The password is not that of the account; sudo has not been asked."""
    PASSWORD = auto()
    NOT_ALLOWED = auto()
    """The account may not use sudo, whatever the password."""
    OTHER = auto()


class SudoRefusedError(PreflightError):
    """`sudo` on a node refuses."""

    def __init__(self, message: str, *, refusal: SudoRefusal, hint: str = "", node: str = "") -> None:
        super().__init__(message, hint=hint, node=node)
        self.refusal = refusal


class PartialError(OrchError):
    """Some nodes did it, others did not."""

    exit_code = 5


class ConflictError(OrchError):
    """Another run, another launch or another program holds what this one needs."""

    exit_code = 6


class PortTakenError(ConflictError):
    """The very port that was asked for has a listener on its node."""

    def __init__(self, port: int, *, holder: str = "", node: str) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"port {port}, which --master-port asks for, is taken{by}",
            node=node,
            hint="end that, ask for another one, or leave out --master-port: the next free one is taken then",
        )
        self.port = port


class DeadlineError(OrchError):
    """The time allowed for it has passed."""

    exit_code = 7


class CommandFailedError(OrchError):
    """A command on a node exited non-zero. Its exit code decides; its text is only shown."""

    exit_code = 4
