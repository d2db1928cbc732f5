"""`python -m trainer.check`: whether the trainer would take these words, as JSON on stdin, before anything starts.

    {"words": ["gpt2", "--epochs", "1"], "data": "Data", "environment": {}, "prog": "orch launch --"}

`data`: the folder that the training would read, null where it is not on this computer. Answer, as JSON on stdout:
`help`, where the words ask for it; `refused`, what the trainer would say before it ends, with its exit code in `code`;
`hint`, what to do then; `needs`, the command that makes the data which the training reads, where none was given;
`replaces`, what `data` holds of another workload, where the words prepare data there.

Needs Python alone, no package: the controller has no torch. Run in the folder of the user's code.
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

from trainer.cli import parse
from trainer.config import RankInfo
from trainer.data.prepared_folder import KINDS, MANIFEST, Kind, kind_of
from trainer.errors import ConfigurationError, TrainerError


@dataclass(frozen=True, kw_only=True)
class Answer:
    help: str = ""
    refused: str = ""
    code: int = 0
    hint: str = ""
    needs: str = ""
    replaces: str = ""


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
        return _other_data(given.command, kind, other, data)
    if data and kind and not (data / MANIFEST).is_file() and not any(data.rglob("*.pt")):
        return _not_prepared(kind, data)
    # Options that stand in a file, or in variables, may change what the others must be.
    if not given.config and not asked["environment"]:
        try:
            given.check(given, RankInfo(), data)
        except TrainerError as error:
            return Answer(refused=str(error), code=error.exit_code)
    return Answer(needs=kind.prepare_line("Data") if kind and not data and not elsewhere else "")


def _other_data(workload: str, kind: Kind, other: str, folder: Path) -> Answer:
    beside = f"{folder}-{kind.workload}"
    return Answer(
        refused=f"{folder} holds {other}; {workload} reads {kind.name}",
        code=ConfigurationError.exit_code,
        hint=f"{kind.prepare_line(beside)}   # then launch with --data {beside}",
    )


def _not_prepared(kind: Kind, folder: Path) -> Answer:
    """Often the very texts or pictures that are to be prepared."""
    option = kind.source.split()[0]
    return Answer(
        refused=f"{folder} holds no prepared data: there is no {MANIFEST}",
        code=ConfigurationError.exit_code,
        hint=f"orch prepare -- {kind.workload} {option} {folder}   # makes ./Data of it; then launch without --data",
    )


if __name__ == "__main__":
    print(json.dumps(asdict(answer(json.load(sys.stdin)))))
