"""Files of the page: those of others are unchanged."""

from __future__ import annotations

import re
from hashlib import sha256

from orchestrator.cli.web.app import ASSETS

VENDOR = ASSETS / "vendor"


def test_vendored_files_are_those_of_the_recorded_sums() -> None:
    recorded = dict(re.findall(r"^\| (\S+) \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE))
    assert recorded == {
        file.name: sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir() if file.name != "README.md"
    }
