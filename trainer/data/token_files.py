"""Files of tokens that are written in parts, and continued after an interruption."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainer.data.files import sync_folder
from trainer.data.prepared_folder import shard_limit


class TokenFiles:
    """Shards of one split, with hidden names until all are complete. The hash of each is computed while it is written,
    so that no shard is in memory or read again."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int) -> None:
        self._folder, self._split, self._dtype, self._most = folder, split, dtype, shard_tokens * dtype.itemsize
        self._file: BinaryIO | None = None
        self._hash, self._length = hashlib.sha256(), 0
        self._shards: list[dict[str, Any]] = []
        """Entries of the manifest for the full shards."""
        self.tokens = self._bytes = self._pieces = 0

    def add(self, tokens: NDArray[Any], text_bytes: int) -> None:
        """Add the tokens of a piece of text of so many bytes."""
        self.tokens += len(tokens)
        self._bytes += text_bytes
        self._pieces += 1
        while len(tokens):
            part = tokens[: self._limit() - self._length]
            tokens = tokens[len(part) :]
            if self._file is None:
                self._file = self._path(len(self._shards)).open("w+b")
            content = part.tobytes()
            self._file.write(content)
            self._hash.update(content)
            self._length += len(part)
            if self._length == self._limit():
                self._close_shard()

    def state(self) -> dict[str, Any]:
        """Write to the disk what has come; return what `restore` needs to continue from here."""
        self._sync()
        counts = {"tokens": self.tokens, "bytes": self._bytes, "pieces": self._pieces}
        return {**counts, "shards": self._shards, "open": self._length}

    def restore(self, state: dict[str, Any]) -> bool:
        """Continue after `state`: what was written later is dropped. False: its files are not there."""
        shards, length = list(state["shards"]), int(state["open"])
        sizes = [*(int(shard["bytes"]) for shard in shards), *([length * self._dtype.itemsize] if length else [])]
        paths = [self._path(number) for number in range(len(sizes))]
        if any(not path.exists() or path.stat().st_size < size for path, size in zip(paths, sizes, strict=True)):
            return False
        for path in set(self._hidden()) - set(paths):
            path.unlink()
        self._shards, self._length = shards, length
        if length:
            self._file = paths[-1].open("r+b")
            self._file.truncate(sizes[-1])
            while block := self._file.read(1 << 20):
                self._hash.update(block)
        self.tokens, self._bytes, self._pieces = (int(state[key]) for key in ("tokens", "bytes", "pieces"))
        return True

    def finish(self) -> dict[str, Any]:
        """Give all shards their names; return the split's entry in the manifest."""
        if self._length:
            self._close_shard()
        for number, shard in enumerate(self._shards):
            self._path(number).replace(self._folder / str(shard["file"]))
        sync_folder(self._folder)
        return {"tokens": self.tokens, "bytes": self._bytes, "pieces": self._pieces, "shards": self._shards}

    def remove(self) -> None:
        """Remove the shards that have no name yet."""
        self.close()
        for path in self._hidden():
            path.unlink()

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _limit(self) -> int:
        """Tokens of the shard that is being written."""
        before = sum(int(shard["bytes"]) for shard in self._shards)
        return shard_limit(before, self._most) // self._dtype.itemsize

    def _hidden(self) -> list[Path]:
        return list(self._folder.glob(f".{self._split}-*.tokens"))

    def _path(self, number: int) -> Path:
        return self._folder / f".{self._split}-{number:05d}.tokens"

    def _sync(self) -> None:
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _close_shard(self) -> None:
        self._sync()
        self.close()
        digest, size = self._hash.hexdigest(), self._length * self._dtype.itemsize
        name = f"{self._split}-{digest[:12]}.bin"
        self._shards = [*self._shards, {"file": name, "bytes": size, "sha256": digest, "tokens": self._length}]
        self._hash, self._length = hashlib.sha256(), 0
