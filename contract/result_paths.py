"""Paths and first bytes of files that may be copied between nodes: nothing that Python imports, that a shell runs or
that this project keeps in the folder of a run. Pure."""

from __future__ import annotations

import re

from contract.run_folder import CODE_FOLDER, is_own_file

MAX_PATH_CHARS, MAX_DEPTH = 400, 16
HEAD_BYTES = 8
"""Bytes at the beginning of a file by which `content_problem` judges."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "bin", "scripts"})
"""Folders with code, or with programs that a shell finds."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029]")
_CODE = re.compile(
    r"\.(?:py[a-z0-9]{0,2}|ipynb|so(?:\.[0-9.]{1,20})?|dylib|dll|exe|egg|egg-link|whl|jar|_pth|sh|bash|zsh|ksh|csh|fish"
    r"|command|bat|cmd|ps1|pl|rb|js|mjs|lua|sbatch|service|desktop)$",
    re.IGNORECASE,
)
_TORCH_HEADS = (b"PK\x03\x04", b"\x80")
"""Beginnings of files that torch.save writes."""
_PROGRAM_HEADS = (b"#!", b"\x7fELF")


def shown(path: str) -> str:
    """A path as the user's script wrote it, if it wrote into its own folder."""
    return path.removeprefix(f"{CODE_FOLDER}/")


def path_problem(path: str) -> str:
    """Reason why a file of this path in the folder of a run is not copied; empty: there is none."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH_CHARS or len(parts) > MAX_DEPTH or _CONTROL.search(path):
        return "its path is too long or has unusual characters"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    if any(not part or part.startswith((".", "-", "~")) or part != part.strip() for part in parts):
        return "its path leads elsewhere, or is hidden"
    if any(part.lower() in SKIPPED_FOLDERS for part in parts[:-1]):
        return "it is in a folder with programs"
    if any(_CODE.search(part) for part in parts):
        return "Python or a shell may run it"
    return "it belongs to orch" if is_own_file(path) else ""


def content_problem(path: str, head: bytes) -> str:
    """Reason why a file that begins with these bytes is not copied; empty: there is none.

    Weights are often saved as `.pth`; Python runs lines of a text of that name.
    """
    if head.startswith(_PROGRAM_HEADS):
        return "it is a program"
    if path.lower().endswith(".pth") and not head.startswith(_TORCH_HEADS):
        return "it is a .pth file that torch.save has not written"
    return ""
