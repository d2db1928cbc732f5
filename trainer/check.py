"""`python -m trainer.check`: check a command line of the trainer, read as JSON from stdin, before anything starts.

    {"words": ["gpt2", "--epochs", "1"], "data": "Data", "environment": {}, "prog": "orch launch --"}

`data`: the folder that the training would read, null where it is not on this computer. The answer is JSON on stdout.
Needs Python alone, no package: the controller has no torch. Run it in the folder of the user's code.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contract.cost_model.memory import TransformerTraining
from contract.data_parts import MANIFEST
from trainer.cli import parse
from trainer.config import RankInfo
from trainer.data.prepared_folder import KINDS, kind_of
from trainer.errors import ConfigurationError, TrainerError


@dataclass(frozen=True, kw_only=True)
class Answer:
    help: str = ""
    """The help text, if the words ask for it."""
    refused: str = ""
    """The error with which the trainer would end."""
    code: int = 0
    """The exit code of `refused`."""
    hint: str = ""
    """The next step after `refused`."""
    needs: str = ""
    """The command that makes the data which the training reads, if none was given."""
    sizes: TransformerTraining | None = None
    """Sizes on which the memory of the training depends; None: not known here."""
    packages: tuple[str, ...] = ()
    """Packages that the training needs and that an image has only where a project adds them."""
    replaces: str = ""
    """The kind of data of another workload in `data`, if the words prepare data there."""


def answer(asked: Mapping[str, Any]) -> Answer:
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            given = parse(asked["words"], prog=asked["prog"])
    except SystemExit:  # argparse has shown the help
        return Answer(help=shown.getvalue())
    except TrainerError as error:
        return Answer(refused=str(error), code=error.exit_code)
    kind = next((kind for kind in KINDS if given.command in kind.read_by), None)
    if kind and given.action == "prepare" and asked["data"]:
        other = kind_of(Path(asked["data"]))
        return Answer(replaces=other if other != kind.name else "")
    if not hasattr(given, "check"):
        return Answer()
    elsewhere = given.data_dir or getattr(given, "images", None) or "TRAINER_DATA_DIR" in asked["environment"]
    data = Path(asked["data"]) if asked["data"] and not elsewhere else None
    if data and kind and (other := kind_of(data)) and other != kind.name:
        apart = f"{data}-{kind.workload}"
        return Answer(
            refused=f"{data} holds {other}; {given.command} reads {kind.name}",
            code=ConfigurationError.exit_code,
            hint=f"{kind.prepare_line(apart)}   # then launch with --data {apart}",
        )
    if data and kind and not (data / MANIFEST).is_file() and not any(data.rglob("*.pt")):
        # Often the texts or images that are to be prepared.
        option = kind.source.split()[0]
        return Answer(
            refused=f"{data} holds no prepared data: there is no {MANIFEST}",
            code=ConfigurationError.exit_code,
            hint=f"orch prepare -- {kind.workload} {option} {data}   # makes ./Data of it; then launch without --data",
        )
    # Options in a file or in variables may change what the others must be.
    sizes = None
    if not given.config and not asked["environment"]:
        try:
            given.check(given, RankInfo(), data)
            sizes = given.sizes(given, data) if data and hasattr(given, "sizes") else None
        except TrainerError as error:
            return Answer(refused=str(error), code=error.exit_code)
    return Answer(
        needs=kind.prepare_line("Data") if kind and not data and not elsewhere else "",
        sizes=sizes,
        packages=getattr(given, "packages", ()),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(answer(json.load(sys.stdin)))))
