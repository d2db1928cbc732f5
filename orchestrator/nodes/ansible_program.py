"""The program `ansible-inventory`: an inventory with its vault, templates and plugins, as JSON."""

from __future__ import annotations

import shlex
import shutil
import subprocess
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
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{file}: {PROGRAM} had not ended after {ANSWER_S:.0f} s", hint=again) from None
    except OSError as error:
        raise ConfigError(f"{file}: {PROGRAM} cannot be run: {error.strerror}", hint=again) from error
    if ran.returncode != 0:
        lines = ran.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ran.returncode}"]
        first = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        vault = "; a vault needs its password: export ANSIBLE_VAULT_PASSWORD_FILE=FILE" if "ault" in first else ""
        raise ConfigError(f"{file}: {PROGRAM} failed: {first[:500]}", hint=f"{again}{vault}")
    if len(ran.stdout) > MAX_BYTES:
        raise ConfigError(f"{file}: {PROGRAM} wrote more than {MAX_BYTES // 1024} KiB", hint=again)
    return ran.stdout.decode(errors="replace")
