"""The program `orch`, also as `python -m orchestrator`."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line of this process, and exit; its version alone without loading what reads command lines."""
    if sys.argv[1:] in (["--version"], ["version"]):
        from orchestrator import __version__

        print(f"orch {__version__}")  # noqa: T201  # what writes lines elsewhere loads ten times as much
        return
    from orchestrator.cli import run

    run()


if __name__ == "__main__":
    run()
