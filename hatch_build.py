"""Build the documentation site for `orch docs`: into the wheel, or beside a clone that is installed as editable."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SiteHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own gap
    """The packages that the build imports are those of `build-system.requires`. An editable installation without build
    isolation may lack them, and then has no site."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" and not (find_spec("zensical") and find_spec("yaml")):
            return
        site = Path(self.root, "build", "site")
        subprocess.run([sys.executable, "scripts/docs.py", "build", "--out", str(site)], cwd=self.root, check=True)
        if version != "editable":
            build_data["force_include"][str(site)] = "orchestrator/site"
