"""Files and packages that a script did not find on a node, and that the folder of its launch has or names."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from contract.failures.classify import Classified
from contract.failures.of_programs import DATA_NOT_BROUGHT, NOT_BUILT, NOT_ON_PATH
from contract.run_folder import CODE_FOLDER
from orchestrator.specs.data import DataFolder, name_of
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.plan import Plan

MOST_WORDS = 20
"""Words of a message that are looked at as paths."""
WORKSPACE = "/workspace"
LIST = "requirements.txt"
"""Packages of a project, beside its scripts."""

IsFolder = Callable[[str], bool | None]


@dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """Files of this computer that the script of a run may mean."""

    plan: Plan | None
    is_folder: IsFolder
    """True if a path of this computer is a folder; None: nothing is there."""

    def looked_up(self, found: Classified) -> Classified:
        """The failure with the command that brings what a rank did not find, where it is here: data, or packages."""
        plan = self.plan
        if not plan or not plan.own_code or not plan.code_origin:
            return found
        if "module" in found.values:
            on_path = self._on_path(found, plan)
            return on_path or (self._built(found, plan.code_origin) if found.id == "start.module" else found)
        return self._brought(found, plan) if found.id == "storage.not_found" else found

    def _on_path(self, found: Classified, plan: Plan) -> Classified | None:
        """A module of the folder itself, where a script of another folder does not look; `src` is a usual place."""
        module = found.values["module"]
        for place in (".", "src"):
            files = (f"{plan.code_origin}/{place}/{name}" for name in (module, f"{module}.py"))
            if any(self.is_folder(file) is not None for file in files):
                changed = replace(plan, environment={**plan.environment, "PYTHONPATH": place})
                line = shlex.join(launch_words(changed))
                return replace(found, signature=NOT_ON_PATH, commands={"launch": line})
        return None

    def _built(self, found: Classified, folder: str) -> Classified:
        """A module of no file in the folder, which has a list of packages."""
        listed, top = f"{folder}/{LIST}", found.values["module"].partition(".")[0]
        is_own = any(self.is_folder(f"{folder}/{place}") is not None for place in (top, f"{top}.py", f"src/{top}"))
        if is_own or self.is_folder(listed) is not False:
            return found
        return replace(
            found, signature=NOT_BUILT, commands={"build": f"orch build --requirements {shlex.quote(listed)}"}
        )

    def _brought(self, found: Classified, plan: Plan) -> Classified:
        text = found.values.get("path", "")
        for word in (text, *re.findall(r"[^\s'\":,()]+", text)[:MOST_WORDS]):
            for place in self._here(word, plan):
                if folder := self._folder_of(place, plan):
                    name = name_of(folder)
                    name += "_2" if name in [one.name for one in plan.data] else ""
                    data = (*plan.data, DataFolder(name=name, origin=folder))
                    line = shlex.join(launch_words(replace(plan, data=data)))
                    return replace(found, signature=DATA_NOT_BROUGHT, values={"path": word}, commands={"launch": line})
        if not text:
            return replace(found, values={"path": "what it looks for"})
        if re.search(r"[\s(]", text):  # a sentence or a check of the script's own, or a name with spaces
            return replace(found, values={"path": f"what it looks for ({text})"})
        return found

    def _here(self, path: str, plan: Plan) -> Iterator[str]:
        """Paths of this computer for one of a script."""
        for root in (WORKSPACE, *(part.folder for part in plan.nodes)):
            run = f"{root}/runs/{plan.run_id}/"
            if path.startswith(run):
                path = os.path.relpath(path.removeprefix(run), CODE_FOLDER)
        if path.startswith("/"):
            yield os.path.normpath(path)
        elif "/" in path or "." in path or self.is_folder(f"{plan.code_origin}/{path}"):
            yield os.path.normpath(f"{plan.code_origin}/{path}")

    def _folder_of(self, place: str, plan: Plan) -> str:
        """Folder to bring for a path; empty: it is not here, is brought already, or holds the code."""
        kind = self.is_folder(place)
        folder = place if kind else str(PurePosixPath(place).parent)
        unusable = PurePosixPath(plan.code_origin).is_relative_to(folder) or folder in [one.origin for one in plan.data]
        return "" if kind is None or unusable else folder
