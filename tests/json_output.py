"""JSON that commands write."""

from __future__ import annotations

import json
from typing import Any


def json_data(out: str) -> Any:
    """The data in the envelope of a command's `--json`."""
    return json.loads(out)["data"]
