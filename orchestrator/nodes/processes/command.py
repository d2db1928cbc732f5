"""Translate a container spec into a process: argv, environment and working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.nodes.processes.files import MARK
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import EngineError
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.secret import is_sensitive

PACKAGES = Path(__file__).parents[3]
"""Folder of the packages `trainer` and `orchestrator`: the repository, or the installation."""
_RUN = "import runpy, sys; sys.path.remove(''); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
INSTALL = "in the clone of orch, with the Python that runs orch: pip install '.[trainer]'"


def launch_of(spec: ContainerSpec, node: str, id: str, scratch: Path) -> dict[str, Any]:
    """Input of the supervisor. `scratch` is the working folder if the container's is not in a mount."""
    host = on_host(spec)
    folder = scratch if host.working_dir == spec.working_dir else Path(host.working_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "argv": resolve(host.command, node),
        "environment": {**own_environment(os.environ, spec), **host.environment, MARK: id},
        "folder": str(folder),
        "restarts": spec.restart_on_failure,
    }


def resolve(command: tuple[str, ...], node: str) -> list[str]:
    """The image's programs as this Python has them; any other program is looked for on the PATH."""
    if "torchrun" in command:
        missing = [package for package in ("torch", "trainer") if find_spec(package) is None]
        if missing:
            raise EngineError(f"{sys.executable} has no {' and no '.join(missing)}", node=node, hint=INSTALL)
    if command[0] == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *command[1:]]
    if command[0] in ("python", "python3"):
        return [sys.executable, *command[1:]]
    return list(command)


def own_environment(own: Mapping[str, str], spec: ContainerSpec) -> dict[str, str]:
    """Environment that the process inherits: without secrets, neither those passed as files nor others of the user."""
    paths = [path for path in (own.get("PYTHONPATH", ""), str(PACKAGES)) if path]
    open_to_it = {
        key: own[key] for key in own if not is_sensitive(key, own[key]) and f"{key}_FILE" not in spec.environment
    }
    return {**open_to_it, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def link_nested_mounts(mounts: tuple[Mount, ...], node: str) -> None:
    """Link each mount inside another mount, so that paths relative to the outer one are valid too. One that lies there
    already, as data do, needs no link."""
    for inner in mounts:
        if not Path(inner.source).exists():
            raise EngineError(f"{inner.source}, which {inner.target} shows, is not there", node=node)
        for outer in mounts:
            place = Path(outer.source) / inner.target.removeprefix(f"{outer.target}/")
            if inner.target.startswith(f"{outer.target}/") and place != Path(inner.source):
                _link(place, inner.source, node)


def _link(place: Path, source: str, node: str) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        try:
            place.rmdir()  # an empty folder, made for the mount
        except OSError as error:
            raise EngineError(
                f"{place} holds files and hides {source}",
                node=node,
                hint="move them away, or give --mount another target",
            ) from error
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source)
