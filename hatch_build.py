"""Build the documentation site into the wheel, where `orch docs` opens it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SiteHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own gap
    """Not for editable installations: a clone builds the site with `python scripts/docs.py build`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        site = Path(self.root, "build", "site")
        subprocess.run([sys.executable, "scripts/docs.py", "build", "--out", str(site)], cwd=self.root, check=True)
        build_data["force_include"][str(site)] = "orchestrator/site"
