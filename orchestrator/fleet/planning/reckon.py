"""Ask the trainer what follows from a measurement: its forecast is pure, needs no torch, and runs on the controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.fleet.planning.trainer_beside import PACKAGES, ask_trainer
from orchestrator.nodes.interface import Node
from orchestrator.specs.capacity import Prospect, read_prospect
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.measurement import Measurement


def reckon(controller: Node, measurement: Measurement, question: Mapping[str, Any]) -> Prospect:
    """`question`: fields of `trainer.forecast.plan.Question`.

    UsageError: in the trainer's own words, what cannot be answered. ConfigError: there is no trainer to ask.
    """
    asked = {"measured": measurement.measured, "question": question}
    answer = ask_trainer(controller, "trainer.forecast", asked)
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
