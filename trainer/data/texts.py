"""Texts of the user, read in parts so that memory does not grow with their size: plain text, JSON lines, Parquet, each
also compressed, and data sets of Hugging Face."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from trainer.data.files import files_in
from trainer.errors import ConfigurationError

TEXT_KEY = "text"
"""Usual name of the field or column with the text."""
BLOCK = 4 << 20
"""Characters of a part, about: a longer document is divided at the end of a line."""
LONGEST_LINE = 64 << 20
"""Bytes of a line of JSON: a longer one is no JSON lines."""
MOST_NAMED = 20
"""Bad files that one message names."""
HUB = "hf:"
"""Prefix of a data set: `hf:ORG/NAME`, `hf:ORG/NAME:CONFIGURATION`."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text, or one of the parts of a long one; nothing in it continues in the next document, except in a part."""

    name: str
    text: str


class Texts(Protocol):
    """Documents that can be read several times, in the same order."""

    def __iter__(self) -> Iterator[Document]: ...


class NotText(Exception):
    """A file holds something other than text; the message says what and where."""


class Damaged(Exception):
    """A compressed file is cut or wrong."""


@dataclass(kw_only=True)
class TextFiles:
    """Documents of files."""

    root: Path
    files: Sequence[Path]
    key: str = TEXT_KEY
    size: int = 0
    """Bytes of all files on the disk."""
    _read: int = field(default=0, compare=False)
    """Bytes that the iteration under way has read."""

    @property
    def done(self) -> tuple[int, int]:
        """Bytes read, and bytes in all."""
        return self._read, self.size

    @property
    def stamp(self) -> list[list[object]]:
        """Name, size and time of change of every file: equal for texts that need not be read again."""
        found = ((file, file.stat()) for file in self.files)
        return [[str(file.relative_to(self.root.parent)), status.st_size, status.st_mtime_ns] for file, status in found]

    def __iter__(self) -> Iterator[Document]:
        """ConfigurationError: names all files that cannot be read, once the others have been."""
        wrong, before, empty = [], 0, True
        for file in self.files:
            try:
                with file.open("rb") as raw:
                    for text in _texts_in(file, raw, self.key):
                        self._read = before + min(raw.tell(), file.stat().st_size)
                        if text.strip():
                            empty = False
                            yield Document(name=str(file.relative_to(self.root.parent)), text=text)
            except (NotText, OSError) as error:
                wrong.append(f"{file}: {error}")
            before += file.stat().st_size
        self._read = self.size
        if wrong:
            more = [f"and {len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []
            advice = "correct these files, or take them out of the folder; plain text has to be UTF-8"
            raise ConfigurationError("\n".join([*wrong[:MOST_NAMED], *more, advice]))
        if empty:
            raise ConfigurationError(f"{self.root}: no text in it")


def texts_of(path: Path, key: str = TEXT_KEY) -> TextFiles:
    """The texts of a file, or of every file in a folder except hidden ones. ConfigurationError: no such path.

    `key`: field of a JSON line, or column of a Parquet file, that holds the text.
    """
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder; give --text a file or folder of UTF-8 text")
    files = files_in(path) if path.is_dir() else [path]
    return TextFiles(root=path, files=files, key=key, size=sum(file.stat().st_size for file in files))


def _texts_in(file: Path, raw: BinaryIO, key: str) -> Iterator[str]:
    """Documents of a file by the suffixes of its name. NotText, OSError: it cannot be read, with the place."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes and suffixes[-1] == ".parquet":
        yield from _parquet(file, key)
        return
    unpack = DECOMPRESSED.get(suffixes.pop() if suffixes and suffixes[-1] in DECOMPRESSED else "")
    content = unpack(raw) if unpack else raw
    kind = suffixes[-1] if suffixes else ""
    try:
        yield from _json_lines(content, key) if kind in (".jsonl", ".ndjson") else _plain(content)
    except Damaged as error:
        raise NotText(f"damaged: {error}") from None


# ── Plain text ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(content: BinaryIO) -> Iterator[str]:
    """UTF-8 in parts that end with a line, or after `BLOCK` characters without one."""
    rest, lines, position = b"", 0, 0
    block = _read(content, BLOCK).removeprefix(b"\xef\xbb\xbf")
    while block:
        following = _read(content, BLOCK)
        whole = rest + block
        end = (whole.rfind(b"\n") + 1 or _character_end(whole)) if following else len(whole)
        part, rest, block = whole[:end], whole[end:], following
        yield _decoded(part, lines, position)
        lines += part.count(b"\n")
        position += len(part)


def _decoded(part: bytes, lines: int, position: int) -> str:
    """Text of a part that begins after so many lines and bytes."""
    if b"\0" in part:
        raise NotText(f"not a text: NUL byte at line {lines + part[: part.index(0)].count(10) + 1}")
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines + part[: error.start].count(b"\n") + 1
        raise NotText(
            f"not UTF-8: byte 0x{part[error.start]:02x} at line {line} (byte {position + error.start})"
        ) from None


def _character_end(block: bytes) -> int:
    """Bytes without a character that the end cuts: at most three of them belong to it."""
    for back in range(1, min(4, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(block) - back if length > back else len(block)
    return len(block)


# ── Records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _json_lines(content: BinaryIO, key: str) -> Iterator[str]:
    number = 0
    for line in _lines(content):
        number += 1
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise NotText(f"line {number} is not JSON: {error}") from None
        yield _field(record, key, f"line {number}")


def _lines(content: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while block := _read(content, 1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            raise NotText(f"a line is longer than {LONGEST_LINE >> 20} MiB: this is no file of JSON lines")
    yield rest


def _parquet(file: Path, key: str) -> Iterator[str]:
    pyarrow, parquet = _package("pyarrow", "pyarrow"), _package("pyarrow.parquet", "pyarrow")
    try:
        table = parquet.ParquetFile(file)
        if key not in table.schema_arrow.names:
            raise NotText(f"no column {key!r} in it; --text-key names one of: {', '.join(table.schema_arrow.names)}")
        row = 0
        for batch in table.iter_batches(batch_size=256, columns=[key]):
            for value in batch.column(0).to_pylist():
                row += 1
                yield _text(value, key, f"row {row}")
    except (pyarrow.ArrowException, OSError) as error:
        raise NotText(f"damaged: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


def _field(record: Any, key: str, place: str) -> str:
    if not isinstance(record, dict) or key not in record:
        keys = ", ".join(map(str, list(record)[:8])) if isinstance(record, dict) else type(record).__name__
        raise NotText(f"{place} has no {key!r}; --text-key names one of: {keys}")
    return _text(record[key], key, place)


def _text(value: Any, key: str, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise NotText(f"{place}: {key!r} is not a text but {type(value).__name__}")
    return value.encode("utf-8", "replace").decode()  # JSON may hold half a character, which UTF-8 has no bytes for


# ── Compression ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _zstandard(raw: BinaryIO) -> BinaryIO:
    reader: BinaryIO = _package("zstandard", "zstandard").ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return reader


def _gzip(raw: BinaryIO) -> BinaryIO:
    reader: BinaryIO = io.BufferedReader(gzip.GzipFile(fileobj=raw))
    return reader


DECOMPRESSED: dict[str, Callable[[BinaryIO], BinaryIO]] = {".gz": _gzip, ".zst": _zstandard}


def _read(content: BinaryIO, size: int) -> bytes:
    """Damaged: the compressed stream is cut or wrong."""
    try:
        return content.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Damaged(error) from None
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise Damaged(error) from None
        raise


def _package(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"the package {package} is missing, which reads these files:\n"
            f"  echo {package} >> requirements.txt && orch build --requirements requirements.txt"
        ) from None


# ── Data sets of Hugging Face ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class HubTexts:
    """Texts of the `train` split of a data set, read as a stream: nothing of it is stored."""

    name: str
    """`ORG/NAME`, `ORG/NAME:CONFIGURATION`, or a local folder."""
    key: str = TEXT_KEY

    def __iter__(self) -> Iterator[Document]:
        """ConfigurationError: it cannot be read."""
        datasets = _package("datasets", "datasets")
        path, _, configuration = self.name.partition(":")
        try:
            rows: Iterable[Any] = datasets.load_dataset(path, configuration or None, split="train", streaming=True)
            for number, row in enumerate(rows, 1):
                yield Document(name=self.name, text=_field(row, self.key, f"row {number}"))
        except ConfigurationError:
            raise
        except Exception as error:  # the package has dozens of its own, and those of the network
            raise ConfigurationError(f"{HUB}{self.name}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class AllTexts:
    """Several sources, one after another."""

    sources: Sequence[Texts]

    def __iter__(self) -> Iterator[Document]:
        for source in self.sources:
            yield from source

    @property
    def stamp(self) -> list[object] | None:
        """Equal for texts that need not be read again; None: one of the sources has no stamp."""
        stamps = [getattr(source, "stamp", None) for source in self.sources]
        return None if None in stamps else [source for stamp in stamps for source in stamp or ()]

    @property
    def done(self) -> tuple[int, int]:
        """Bytes read and bytes in all; of sources without a size nothing."""
        files = [source for source in self.sources if isinstance(source, TextFiles)]
        return sum(file.done[0] for file in files), sum(file.size for file in files)
