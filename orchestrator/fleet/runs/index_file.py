"""An SQLite file whose content can be made again from other files: it may be missing, damaged, of another version, or
held by another process, and no error of SQLite leaves this module."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

WAIT_S = 5.0
"""How long another process may hold the file."""
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """The file, and the statements that make its tables."""

    path: Path
    version: int
    """Version of the tables and of their meaning: tables of another one are made again."""
    tables: str

    @property
    def all_files(self) -> list[Path]:
        """The file, and those that SQLite keeps beside it."""
        return [self.path.with_name(self.path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]

    @property
    def inode(self) -> int:
        """Another number after the file was made again; 0 where there is none."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def read(self, rows: Callable[[sqlite3.Connection], Iterator[Row]]) -> Iterator[Row]:
        """Yield from `rows`, which first brings the tables up to date. After an error it is called again with a new
        file, and at last with one in memory; rows that were given before are not given again."""
        given, held = 0, False
        for attempt in (self._open, self._open_again, self._open_in_memory):
            if held and attempt != self._open_in_memory:
                continue
            try:
                with closing(attempt()) as database:
                    for row in islice(rows(database), given, None):
                        given += 1
                        yield row
                return
            except (sqlite3.Error, OSError) as error:
                held = "locked" in str(error)  # by another process

    def update(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Make a change, if that is possible now."""
        with suppress(sqlite3.Error, OSError), closing(self._open()) as database:
            change(database)

    def _open(self) -> sqlite3.Connection:
        if not self.path.parent.is_dir():
            return self._open_in_memory()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        database = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _open_again(self) -> sqlite3.Connection:
        for file in self.all_files:
            file.unlink(missing_ok=True)
        return self._open()

    def _open_in_memory(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None)
        self._prepare(database)
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make the tables, unless those there are of this version."""
        if _version(database) == self.version:
            return
        with transaction(database):
            if _version(database) != self.version:  # not made by another process just now
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    database.execute('DROP TABLE "{}"'.format(name.replace('"', '""')))
                for statement in filter(str.strip, self.tables.split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {self.version}")


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


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])
