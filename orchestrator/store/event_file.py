"""The SQLite file with the events of a run: its tables, and the journal that its file system allows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from orchestrator.nodes.state_files import private_folder

VERSION = 1
"""Version of the tables and of their meaning: tables of another one are made again."""
WAIT_S = 1.0
"""Seconds for which another process may hold the file."""
_TABLES = (
    "CREATE TABLE events(id INTEGER PRIMARY KEY, time TEXT NOT NULL, node TEXT NOT NULL, node_rank INTEGER NOT NULL,"
    " rank INTEGER, container TEXT NOT NULL, pos INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,"
    " UNIQUE(container, pos))",
    "CREATE INDEX by_kind ON events(kind, time)",
    "CREATE TABLE stored(container TEXT PRIMARY KEY, pos INTEGER NOT NULL)",
    f"PRAGMA user_version = {VERSION}",
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""The last one: a table or a column is not there."""
MOUNTS = Path("/proc/self/mountinfo")
_SHARED = [
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
]
Connect = Callable[..., sqlite3.Connection]


class EventFile:
    """The file. Who changes its rows holds the lock of the run's lines."""

    def __init__(self, folder: Path, connect: Connect = sqlite3.connect) -> None:
        self.folder, self.path, self._connect = folder, folder / "events.sqlite", connect

    @property
    def inode(self) -> int:
        """Another number after the file was made again; 0 where there is none."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def open(self) -> sqlite3.Connection:
        """A connection to the file, which is made if there is none. sqlite3.Error or OSError: it cannot be used."""
        private_folder(self.folder)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        database = self._connect(self.path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            _choose_journal(database, shared=is_shared(self.folder))
            _make_tables(database)
        except BaseException:
            database.close()
            raise
        return database

    def remove(self) -> None:
        """Remove a damaged file. A process that has it open notices its inode."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                self.path.with_name(self.path.name + suffix).unlink()


def is_damage(error: Exception) -> bool:
    """Return whether the file has to be made again; otherwise it is in use, or cannot be written now."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One write at a time, complete or not at all."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _choose_journal(database: sqlite3.Connection, *, shared: bool) -> None:
    """Choose a write-ahead log, for which readers do not wait, where it works: its index is in memory that only
    processes of one computer share."""
    mode = ""
    with suppress(sqlite3.OperationalError):
        mode = str(database.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'WAL'}").fetchone()[0])
    if not shared and mode != "wal":
        database.execute("PRAGMA journal_mode=DELETE")
    database.execute("PRAGMA synchronous=NORMAL")


def _make_tables(database: sqlite3.Connection) -> None:
    """Make the tables, unless those there are of this version."""
    if _version(database) == VERSION:
        return
    with transaction(database):
        if _version(database) != VERSION:  # not made by another process just now
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in tables:
                database.execute('DROP TABLE "{}"'.format(name.replace('"', '""')))
            for statement in _TABLES:
                database.execute(statement)


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


@lru_cache(maxsize=64)
def is_shared(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether other computers may share the file system: one of a network; also where FUSE hides which one it
    is."""
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
