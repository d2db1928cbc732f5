"""Labelled texts in CSV files: a column of text and one for each head."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from trainer.errors import ConfigurationError

csv.field_size_limit(1 << 24)  # a chapter is a field too


@dataclass(frozen=True, kw_only=True)
class LabelledText:
    text: str
    labels: tuple[str, ...]
    """One for each head, in the order that was asked for."""
    line: int


@dataclass(frozen=True, kw_only=True)
class LabelledTable:
    """A CSV file, which `predict` writes back with more columns."""

    columns: list[str]
    rows: list[list[str]]
    lines: list[int]
    """First line of each row."""


def read_labelled(path: Path, text_column: str, heads: Sequence[str]) -> list[LabelledText]:
    """Read every row. ConfigurationError: names every problem of the file."""
    table, wrong = read_table(path, (text_column, *heads))
    at = [table.columns.index(name) for name in (text_column, *heads) if name in table.columns]
    found = []
    for line, row in zip(table.lines, table.rows, strict=True):
        values = [row[column].strip() for column in at]
        empty = [name for name, value in zip((text_column, *heads), values, strict=False) if not value]
        if empty:
            wrong.append(f"{path}:{line}: nothing in {', '.join(empty)}")
        elif len(values) == len(heads) + 1:
            found.append(LabelledText(text=values[0], labels=tuple(values[1:]), line=line))
    must_be_right(wrong)
    if not found:
        raise ConfigurationError(f"{path}: no rows under the names of the columns")
    return found


def read_table(path: Path, needed: Sequence[str]) -> tuple[LabelledTable, list[str]]:
    """Read the rows with the right number of cells, and the problems of the others."""
    try:
        raw = path.read_bytes()
        content = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; give --csv a CSV file, `demo` or `spanish`") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigurationError(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        ) from None
    header = content.partition("\n")[0]
    # Spreadsheets write semicolons where the comma is the decimal sign, as in Spanish.
    delimiter = max(",;\t", key=header.count)
    wrong: list[str] = []
    records = _records(path, content, delimiter, wrong)
    _, columns = next(records, (1, []))
    columns = [name.strip() for name in columns]
    for name in needed:
        if name not in columns:
            close = get_close_matches(name, columns, 1)
            known = f"; it has: {', '.join(columns)}; name yours: --heads NAME,…, and --text-column NAME"
            wrong.append(f"{path}:1: no column {name!r}" + (f" (did you mean {close[0]!r}?)" if close else known))
    wrong += [f"{path}:1: two columns {name!r}" for name in sorted({n for n in columns if columns.count(n) > 1})]
    rows, lines = [], []
    for line, row in records:
        if len(row) == len(columns):
            rows.append(row)
            lines.append(line)
        elif row:
            wrong.append(f"{path}:{line}: {len(row)} cells, expected {len(columns)} ({delimiter!r} between them)")
    return LabelledTable(columns=columns, rows=rows, lines=lines), wrong


def must_be_right(wrong: list[str], shown: int = 50) -> None:
    if wrong:
        more = [f"… and {len(wrong) - shown} more"] if len(wrong) > shown else []
        raise ConfigurationError("\n".join(wrong[:shown] + more))


def _records(path: Path, content: str, delimiter: str, wrong: list[str]) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of each record; a quoted text may span many lines."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            yield line, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            wrong.append(f"{path}:{line}: {error}")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((columns, *rows))
    return text.getvalue()


def split(rows: Sequence[LabelledText], share: float, head: int) -> tuple[list[LabelledText], list[LabelledText]]:
    """Split into training and validation: of each class of one head the texts with the smallest hashes are held back.
    Rows added to a file later move few others, and equal texts are never in both parts."""
    classes: dict[str, set[str]] = defaultdict(set)
    first: dict[str, str] = {}
    for row in rows:
        classes[first.setdefault(row.text, row.labels[head])].add(row.text)
    held: set[str] = set()
    for texts in classes.values():
        by_hash = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
        count = max(round(len(texts) * share), 1) if len(texts) > 1 else 0
        held.update(by_hash[:count])
    train = [row for row in rows if row.text not in held]
    validation = [row for row in rows if row.text in held]
    if not validation:
        raise ConfigurationError(
            f"{len(rows)} rows are too few to hold some back: give more, or --validation-csv with rows of their own"
        )
    return train, validation
