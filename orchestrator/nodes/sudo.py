"""A node on which `sudo` asks for a password, and gets it on its standard input: it never is an argument of a command,
in an environment, in a file or in a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any, cast

from orchestrator.nodes.interface import Completed, Node
from orchestrator.specs.errors import SudoRefusal, SudoRefusedError

SUDO = ("env", "LC_ALL=C", "sudo", "-k", "-S", "-p", "")
"""English messages, no password of an earlier login, no prompt. `-k` beside a command stores nothing, either."""
BEGIN = "orch-stdin"
SKIP = 'while IFS= read -r line; do [ "$line" = "$0" ] && exec "$@"; done; exit 125'
"""Constant; $0 is BEGIN, $@ the command. Where sudoers asks no password for this command, sudo leaves the password in
front of the command's own input: `tee` would write it into its file."""
CHECK = """\
PATH=$PATH:/usr/sbin:/sbin; user=$(id -un)
grep -q "^$user:" /etc/passwd && exec unix_chkpwd "$user" nullok"""
"""Constant: PAM's own helper compares the password of a local account, which comes on stdin and ends with a zero byte.
It counts as no attempt anywhere."""
_WRONG_THERE = 7  # PAM_AUTH_ERR
PROOF_TIMEOUT_S = 60.0
"""PAM waits after a wrong password, and for a finger where there is a fingerprint reader."""
_LOCKED = ("account is locked", "account locked")
_WRONG = ("incorrect password attempt", "incorrect authentication attempt", "authentication failed")
_NOT_ALLOWED = ("is not in the sudoers file", "is not allowed to", "may not run sudo", "i can't do that")
_NO_TERMINAL = ("must have a tty", "no tty present")


@dataclass(frozen=True)
class Password:
    """A password, in memory alone; its text is not shown where an object is."""

    text: str = field(repr=False)

    @property
    def line(self) -> bytes:
        return f"{self.text}\n".encode()


def with_sudo(node: Node, password: Password) -> Node:
    """The node, with the password for each command that begins with `sudo`."""
    return cast(Node, _SudoNode(node, password))


def root_prefix(node: Node) -> tuple[str, ...]:
    """`sudo` where the node has its password, for a question that only root gets answered."""
    return ("sudo",) if isinstance(node, _SudoNode) else ()


def prove(node: Node, password: Password, *, doubt: bool) -> None:
    """Try the password once. SudoRefusedError says why it is of no use.

    `doubt`: first compare it with the account's own, and do not send a different one to sudo. sudo asks again after a
    wrong password, gets no answer, and where pam_faillock counts, that is two of the three that lock an account
    (measured). Another one may be right all the same, that of root for example (`rootpw`).
    The exit code decides; the messages only tell the reason.
    """
    if doubt:
        checked = node.run(["sh", "-c", CHECK], stdin=f"{password.text}\0".encode(), timeout_s=PROOF_TIMEOUT_S)
        if checked.exit_code == _WRONG_THERE:
            raise SudoRefusedError("it has another password", refusal=SudoRefusal.DOUBTED, node=node.name)
    answer = node.run([*SUDO, "true"], stdin=password.line, timeout_s=PROOF_TIMEOUT_S)
    if answer.exit_code != 0:
        refusal, message, hint = _reason(answer)
        raise SudoRefusedError(message, refusal=refusal, node=node.name, hint=hint)


def _reason(answer: Completed) -> tuple[SudoRefusal, str, str]:
    """Reason, message and next step of a refusal."""
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]

    def written(words: Sequence[str]) -> str:
        found = (line for line in lines if any(word in line.lower() for word in words))
        return next(found, "").removeprefix("sudo: ")

    if not written(_LOCKED) and written(_WRONG):
        return SudoRefusal.PASSWORD, "sudo refuses that password; nothing was changed there", ""
    if line := written(_NOT_ALLOWED):
        return SudoRefusal.NOT_ALLOWED, f"this account may not use sudo: {line}", _LET_USE_SUDO
    if written(_NO_TERMINAL):
        hint = "on it: sudo visudo, remove requiretty; then this command again"
        return SudoRefusal.OTHER, "its sudo works on a terminal alone (requiretty in its sudoers)", hint
    text = written(_LOCKED) or written(("sudo: ",)) or (lines or [f"exit code {answer.exit_code}"])[-1]
    return SudoRefusal.OTHER, f"sudo refuses: {text}", "log in there and try: sudo true"


_LET_USE_SUDO = (
    "on it, from an account that may: sudo usermod --append --groups sudo NAME"
    " (Debian without such an account: su - -c 'usermod --append --groups sudo NAME')"
)


class _SudoNode:
    """Other commands, files and the engine are the node's own."""

    def __init__(self, node: Node, password: Password) -> None:
        self._node, self._password = node, password

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        if argv[0] != "sudo":
            return self._node.run(argv, stdin=stdin, timeout_s=timeout_s)
        options = list(takewhile(lambda word: word.startswith("-"), argv[1:]))
        command = argv[1 + len(options) :]
        own = (stdin,) if isinstance(stdin, bytes) else stdin
        answer = self._node.run(
            [*SUDO, *options, "sh", "-c", SKIP, BEGIN, *command],
            stdin=chain((self._password.line, f"{BEGIN}\n".encode()), own),
            timeout_s=timeout_s,
        )
        return replace(answer, argv=tuple(argv))
