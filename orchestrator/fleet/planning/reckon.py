"""Ask the trainer what follows from a measurement: its forecast is pure, needs no torch, and runs on the controller."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.nodes.seam import Node
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.measurement import Measurement
from orchestrator.specs.prospect import Prospect, read_prospect

PACKAGES = Path(orchestrator.__file__).parents[1]
"""Where the `trainer` package lies, beside `orchestrator`: in the repository, or where both are installed."""
# `-m` would take a folder `trainer` of the user's, where they stand, for ours. $1 is where ours is.
_START = "import runpy, sys; sys.path[0] = sys.argv.pop(1); runpy.run_module('trainer.forecast', run_name='__main__')"


def reckon(controller: Node, measurement: Measurement, question: Mapping[str, Any]) -> Prospect:
    """`question`: fields of `trainer.forecast.plan.Question`.

    UsageError: in the trainer's own words, what cannot be answered. ConfigError: there is no trainer to ask.
    """
    asked = json.dumps({"measured": measurement.measured, "question": question}).encode()
    answer = controller.run((sys.executable, "-c", _START, str(PACKAGES)), stdin=asked, timeout_s=60)
    said = (answer.stderr.strip().splitlines() or [""])[-1]
    if answer.exit_code == UsageError.exit_code and said.startswith("error: "):
        raise UsageError(said.removeprefix("error: "))
    prospect = read_prospect(json.loads(answer.stdout)) if answer.exit_code == 0 else None
    if prospect is None:
        raise ConfigError(
            f"the trainer beside this orch cannot reckon: {said or 'its answer is not understood'}",
            hint=f"{PACKAGES} is to hold `orchestrator` and `trainer` of one version",
        )
    return prospect
