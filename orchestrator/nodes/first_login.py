"""The first login to a machine: the user's public key, and how it gets into `~/.ssh/authorized_keys` there."""

from __future__ import annotations

import subprocess
from contextlib import closing, suppress
from pathlib import Path

import paramiko

from orchestrator.nodes.interface import Node
from orchestrator.nodes.ssh_config import Login
from orchestrator.nodes.ssh_login import DEFAULT_NAMES, NOT_UNDERSTOOD
from orchestrator.specs.errors import CommandFailedError, ConfigError

_APPEND = """\
umask 077
IFS= read -r key || exit 1
cd || exit 1
mkdir -p .ssh && chmod 700 .ssh || exit 1
file=.ssh/authorized_keys
touch "$file" && chmod 600 "$file" || exit 1
grep -qxF -e "$key" "$file" && exit 0
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then printf '\\n' >> "$file" || exit 1; fi
printf '%s\\n' "$key" >> "$file" || exit 1
if command -v restorecon > /dev/null; then restorecon -R .ssh; fi
exit 0
"""
"""Constant; the key comes on stdin. A key that is there already is left alone, and so is every other line."""


def public_key(login: Login) -> str | None:
    """The line of the key that a login tries: of a file, otherwise of the ssh-agent; None without any."""
    usual = [f"~/.ssh/{name}" for name in reversed(DEFAULT_NAMES)]  # ed25519 first
    for name in login.identities or usual:
        file = Path(name).expanduser()
        if line := _of_file(file):
            return line
    with suppress(OSError, paramiko.SSHException), closing(paramiko.Agent()) as agent:
        for key in agent.get_keys():
            return f"{key.get_name()} {key.get_base64()}"
    return None


def _of_file(private: Path) -> str | None:
    if not private.is_file():
        return None
    with suppress(OSError):
        lines = Path(f"{private}.pub").read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and len(lines[0].split()) >= 2 and lines[0].isprintable():
            return lines[0].strip()
    with suppress(OSError, TypeError, *NOT_UNDERSTOOD):  # TypeError: it needs a passphrase
        key = paramiko.PKey.from_path(private)
        return f"{key.get_name()} {key.get_base64()}"
    return None


def make_key() -> Path:
    """Generate ~/.ssh/id_ed25519 without a passphrase. ConfigError: it exists, or ssh-keygen failed."""
    file = Path("~/.ssh/id_ed25519").expanduser()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        ran = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError("there is no ssh-keygen here", hint="sudo apt-get install openssh-client") from None
    if ran.returncode != 0:
        what = ran.stderr.decode(errors="replace").strip() or "it exists already"
        raise ConfigError(f"cannot make {file}: {what}", hint="ssh-keygen -t ed25519")
    return file


def authorize(node: Node, key: str) -> None:
    """Append the public key to the machine's authorized_keys, unless it is there. CommandFailedError: it could not."""
    done = node.run(["sh", "-c", _APPEND], stdin=f"{key}\n".encode())
    if done.exit_code != 0:
        last = done.stderr.strip().rsplit("\n", 1)[-1] or f"exit code {done.exit_code}"
        raise CommandFailedError(
            f"the key could not be stored in ~/.ssh/authorized_keys: {last}",
            node=node.name,
            hint="on it: ls -ld ~ ~/.ssh ~/.ssh/authorized_keys; df -h ~   # is all of it that user's, with room?",
        )
