"""Whether a folder lies on a file system that other computers may share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_SHARED = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "ocfs2",
    "gfs2",
)


@lru_cache(maxsize=64)
def is_shared(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Whether the file system is one of a network; also where FUSE hides which one it is."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    place, best, kind = folder.resolve(), -1, ""
    for line in lines:
        named, _, filesystem = line.partition(" - ")
        point = Path(named.split()[4].replace("\\040", " "))
        if place.is_relative_to(point) and len(point.parts) >= best:  # of two on one another, the later one counts
            best, kind = len(point.parts), filesystem.split()[0]
    return kind in _SHARED or kind.startswith("fuse.")
