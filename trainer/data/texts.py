"""Texts of the user: a UTF-8 file, or a folder of such files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.data.files import files_in
from trainer.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text; nothing in it continues in another."""

    name: str
    text: str


def read_texts(path: Path) -> list[Document]:
    """Read every file under `path` by name, except hidden ones. ConfigurationError: names all bad files."""
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file or folder; give --text a file or folder of UTF-8 text")
    documents, wrong = [], []
    for file in files_in(path) if path.is_dir() else [path]:
        content = file.read_bytes()
        if complaint := _not_text(content):
            wrong.append(f"{file}: {complaint}")
        elif content.strip():
            documents.append(Document(name=str(file.relative_to(path.parent)), text=content.decode("utf-8-sig")))
    if wrong:
        wrong.append("convert these files to UTF-8, or take them out of the folder")
        raise ConfigurationError("\n".join(wrong))
    if not documents:
        raise ConfigurationError(f"{path}: no text in it")
    return documents


def _not_text(content: bytes) -> str:
    if b"\0" in content:
        return f"not a text: NUL byte at line {content[: content.index(0)].count(10) + 1}"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return f"not UTF-8: byte 0x{content[error.start]:02x} at line {line} (byte {error.start})"
    return ""
