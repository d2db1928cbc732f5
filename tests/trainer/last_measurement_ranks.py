"""A training in several ranks that use an earlier measurement where it differs by less than AGREES: `torchrun … -m
tests.trainer.last_measurement_ranks AGREES WORDS…`. However short it is, it is measured."""

from __future__ import annotations

import os
import sys

from trainer.cli import main
from trainer.engine import last_measurement, sync_plan

if __name__ == "__main__":
    os.environ["ORCH_RUN_ID"] = "red-1"  # as a launch would
    last_measurement.AGREES = float(sys.argv[1])
    sync_plan.SHORT_S = 0.0
    sys.exit(main(sys.argv[2:]))
