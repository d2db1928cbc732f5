"""Ranks that act as nodes of their own, each with its part of the data: the module for `forked`."""

from __future__ import annotations

import os
import sys

from trainer.cli import main


def run(words: list[str]) -> int:
    """`words`: the folder with a part for each rank, then a command of the trainer."""
    folder, *command = words
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    return main([*command, "--data-dir", f"{folder}/{os.environ['RANK']}"])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
