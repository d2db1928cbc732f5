"""The program `ansible-inventory`: an inventory with its vault, templates and plugins, as JSON."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_yaml import MAX_BYTES

PROGRAM = "ansible-inventory"
ANSWER_S = 60.0


def listed(file: Path) -> str | None:
    """Answer of `ansible-inventory --list`; None where there is no such program. ConfigError: it failed."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    words = [program, "-i", str(file.absolute()), "--list"]
    again = shlex.join([PROGRAM, "-i", str(file), "--list"])
    try:
        ran = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False,
            env={**os.environ, "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true", "ANSIBLE_NOCOLOR": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{file}: {PROGRAM} had not ended after {ANSWER_S:.0f} s", hint=again) from None
    except OSError as error:
        raise ConfigError(f"{file}: {PROGRAM} cannot be run: {error.strerror}", hint=again) from error
    if ran.returncode != 0:
        reason = _reason(ran.stderr.decode(errors="replace")) or f"exit code {ran.returncode}"
        vault = (
            "export ANSIBLE_VAULT_PASSWORD_FILE=FILE   # the vault's password; then this command"
            if "ault" in reason
            else ""
        )
        raise ConfigError(f"{file}: {PROGRAM} failed: {reason[:500]}", hint=vault or again)
    if len(ran.stdout) > MAX_BYTES:
        raise ConfigError(f"{file}: {PROGRAM} wrote more than {MAX_BYTES // 1024} KiB", hint=again)
    return ran.stdout.decode(errors="replace")


def _reason(errors: str) -> str:
    """The innermost cause of several in its errors, otherwise the line that begins with ERROR, or the last one."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    causes = [line for before, line in pairwise(lines) if before.startswith("<<< caused by")]
    return next(
        (line for line in (*causes[-1:], *lines) if causes or line.startswith("ERROR")), lines[-1] if lines else ""
    )
