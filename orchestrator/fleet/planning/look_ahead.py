"""Check the words of a workload before anything starts, with the option parsers of the installed trainer.

orchestrator and trainer never import each other: the trainer runs as a program, and its answer is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from contract.cost_model.memory import TransformerTraining
from orchestrator.fleet.runs.code_files import PACKAGES
from orchestrator.nodes.interface import Node
from orchestrator.specs.errors import ConfigError, UsageError

# -I and -S: neither a folder `trainer` in the working directory nor site-packages come before ours.
_START = (
    "import os, runpy, sys; where, folder = sys.argv[1:]; sys.path.insert(0, where); os.chdir(folder);"
    " runpy.run_module('trainer.check', run_name='__main__')"
)
_SIZES: TypeAdapter[TransformerTraining | None] = TypeAdapter(TransformerTraining | None)
OWN_CODE = "orch launch --workdir . -- python train.py   # code of your own; for a model: orch docs custom"


@dataclass(frozen=True, kw_only=True)
class CheckedWords:
    """Words that the trainer takes."""

    help: str = ""
    """Text that they ask to be shown instead of a run; empty otherwise."""
    replaces: str = ""
    """Data of another workload in the folder where the words prepare theirs; empty otherwise."""
    needs: str = ""
    """The command that makes the data which they read and which this computer does not have; empty otherwise."""
    packages: tuple[str, ...] = ()
    """Packages that they need and that an image has only where a project adds them."""
    sizes: TransformerTraining | None = None
    """Sizes on which the memory of the training depends; None: not known."""


def look_ahead(
    controller: Node,
    command: Sequence[str],
    *,
    prog: str,
    data: Path | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> CheckedWords:
    """`data`: what a launch would bring; `folder`: the user's code. UsageError, ConfigError: what the trainer says."""
    own = {name: value for name, value in (environment or {}).items() if name.startswith("TRAINER_")}
    asked = {"words": list(command), "data": str(data.absolute()) if data else None, "environment": own, "prog": prog}
    argv = (sys.executable, "-I", "-S", "-c", _START, str(PACKAGES), str((folder or Path()).absolute()))
    ran = controller.run(argv, stdin=json.dumps(asked).encode(), timeout_s=60)
    try:
        answer = json.loads(ran.stdout)
        refused, hint, code = str(answer["refused"]), str(answer["hint"]), int(answer["code"])
        sizes = _SIZES.validate_python(answer["sizes"])
        texts = {name: str(answer[name]) for name in ("help", "needs", "replaces")}
        checked = CheckedWords(**texts, packages=tuple(map(str, answer["packages"])), sizes=sizes)
    except (ValueError, KeyError, TypeError):
        reason = (ran.stderr.strip().splitlines() or ["its answer is not understood"])[-1]
        raise ConfigError(
            f"the trainer of this installation cannot be asked: {reason}",
            hint=f"{PACKAGES} is to hold `orchestrator` and `trainer` of one version",
        ) from None
    if refused and data:
        refused, hint = (text.replace(str(data.absolute()), str(data)) for text in (refused, hint))
    if refused and code == ConfigError.exit_code:
        raise ConfigError(refused, hint=hint)
    if refused:
        unknown = refused.startswith("no workload ")
        raise UsageError(refused, hint=OWN_CODE if unknown else hint or f"{prog} {command[0]} --help")
    return checked
