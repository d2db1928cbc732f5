"""`orch lab down`: remove a lab, whole or half, and prove that nothing of it is left."""

from __future__ import annotations

from orchestrator.lab.host import FOLDER_LABEL, LABEL, docker_host, remove_all
from orchestrator.lab.state import Lab, exclusive, forget_lab, lab_folder, load_lab
from orchestrator.specs.errors import ConfigError


def down(name: str | None = None) -> list[str]:
    """Remove the lab of this folder, or every lab of that name on this engine; what was removed."""
    with exclusive():
        return remove_lab(name, own=name is None)


def remove_lab(name: str | None, *, own: bool) -> list[str]:
    """Remove what carries the lab's labels. `own`: only what this folder made."""
    known = _known()
    gone: list[str] = []
    if known is None or known.engine == "docker":
        filters = [f"{FOLDER_LABEL}={lab_folder()}"] if own else []
        filters += [f"{LABEL}={name}"] if name else []
        with docker_host() as client:
            gone = remove_all(client, filters)
    if own or known is None or known.name == name:
        gone += [f"folder {lab_folder()}"] if forget_lab() else []
    return gone


def strange_folders(name: str) -> list[str]:
    """Folders of other users, or of other states, that remember a lab of this name on this engine."""
    known = _known()
    if known and known.engine == "process":
        return []
    with docker_host() as client:
        held = client.containers.list(all=True, filters={"label": f"{LABEL}={name}"})
        folders = {container.labels.get(FOLDER_LABEL, "?") for container in held}
    return sorted(folders - {str(lab_folder())})


def _known() -> Lab | None:
    try:
        return load_lab()
    except ConfigError:  # to be removed all the same
        return None
