"""Debian's packages as a source of data, for machines that reach a Debian mirror and nothing else."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Apt:
    """The apt client with lists and cache of its own: any user may run it, and nothing is installed."""

    home: Path
    command: tuple[str, ...] = ("apt-get",)

    def update(self) -> str:
        """Fetch the package lists; return the error, empty for none."""
        (self.home / "lists" / "partial").mkdir(parents=True)
        (self.home / "cache" / "archives" / "partial").mkdir(parents=True)
        return self._run("update")

    def download(self, package: str, into: Path) -> str:
        into.mkdir(parents=True)
        return self._run("download", package, cwd=into)

    def _run(self, *arguments: str, cwd: Path | None = None) -> str:
        options = (
            f"Dir::State::lists={self.home}/lists",
            f"Dir::Cache={self.home}/cache",
            "APT::Sandbox::User=root",  # the user _apt could not write into this folder
            "Acquire::Languages=none",
            "Acquire::Retries=2",
            "Acquire::http::Timeout=30",
        )
        argv = (*self.command, "-q", *(part for option in options for part in ("-o", option)), *arguments)
        try:
            done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=600)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        complaints = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err"))]
        return "" if done.returncode == 0 else "; ".join(complaints) or f"apt-get ended with {done.returncode}"


def unpack(root: Path) -> str:
    """Unpack the package in the folder that it was fetched into; return the error, empty for none."""
    archive = next(root.glob("*.deb"), None)
    if archive is None:
        return "apt-get download left no file"
    done = subprocess.run(("dpkg-deb", "-x", archive, root), capture_output=True, text=True, errors="replace")
    return done.stderr.strip() if done.returncode else ""
