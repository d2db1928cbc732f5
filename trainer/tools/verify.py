"""Verify checkpoints, and name the one from which a run would resume."""

from __future__ import annotations

import argparse
import json

from trainer.checkpoint_folder import survey
from trainer.config import RankInfo
from trainer.errors import ConfigurationError


def run(given: argparse.Namespace, _place: RankInfo) -> int:
    folder = given.checkpoints
    folder = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    found = survey(folder)
    newest = next((checkpoint for checkpoint in found if not checkpoint.problem), None)
    if given.json:
        rows = [{"step": c.step, "path": str(c.path), "verified": not c.problem, "problem": c.problem} for c in found]
        print(json.dumps({"newest_verified_step": newest.step if newest else None, "checkpoints": rows}))
        return 0 if newest else ConfigurationError.exit_code
    for checkpoint in found:
        print(f"step {checkpoint.step}: {checkpoint.problem or 'verified'}  {checkpoint.path}")
    if not newest:
        raise ConfigurationError(f"{folder}: no sound checkpoint" if found else f"{folder}: no checkpoint there")
    print(f"newest verified step: {newest.step}")
    return 0
