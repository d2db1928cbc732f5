"""Which checkpoints are sound, and from which one a run would resume."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.engine.checkpoints.checkpoint import survey
from trainer.errors import ConfigurationError


def run(root: Path, *, as_json: bool) -> int:
    folder = root / "checkpoints" if (root / "checkpoints").is_dir() else root
    found = survey(folder)
    newest = next((checkpoint for checkpoint in found if not checkpoint.problem), None)
    if as_json:
        rows = [{"step": c.step, "path": str(c.path), "verified": not c.problem, "problem": c.problem} for c in found]
        print(json.dumps({"newest_verified_step": newest.step if newest else None, "checkpoints": rows}))
    else:
        for checkpoint in found:
            print(f"step {checkpoint.step}: {checkpoint.problem or 'verified'}  {checkpoint.path}")
        if newest:
            print(f"newest verified step: {newest.step}")
    if newest:
        return 0
    if as_json:
        return ConfigurationError.exit_code
    raise ConfigurationError(f"{folder}: no sound checkpoint" if found else f"{folder}: no checkpoint there")
