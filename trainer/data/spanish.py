"""Spanish text from Debian's packages; contents and licences: docs/trainer.md."""

from __future__ import annotations

import gzip
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainer.data.debian import Apt, unpack
from trainer.data.texts import Document
from trainer.errors import ConfigurationError

PASSAGES = "texto"
"""Column of passages in a CSV file; the others are the heads."""
HEADS = {"fuente": 0.4, "parte": 0.6}
FEWEST = 20
"""Passages of a class: a class with fewer can be neither learned nor evaluated."""
SHORTEST = 30
"""Characters: shorter ones are titles and marks."""

Say = Callable[[str], None]


def fetch(say: Say, apt: Apt | None = None) -> list[Document]:
    """Fetch the texts of all packages, and print their sizes in one line. The packages that fail are named;
    ConfigurationError: all failed."""
    with tempfile.TemporaryDirectory(prefix="spanish-") as folder:
        apt = apt or Apt(home=Path(folder) / "apt")
        complaint = apt.update()
        failures = [f"apt-get update: {complaint}"] if complaint else []
        documents: list[Document] = []
        sizes: list[str] = []
        for package, read in PACKAGES.items():
            root = Path(folder) / package
            complaint = apt.download(package, root) or unpack(root)
            if complaint:
                failures.append(f"{package}: {complaint}")
                say(f"  {package} not to be had: {complaint}")
                continue
            found = list(read(root))
            sizes.append(f"{package} {sum(len(d.text) for d in found) / 1e6:.1f}")
            documents += found
        if sizes:
            say(f"  M characters: {', '.join(sizes)}")
    if not documents:
        raise ConfigurationError(
            "no Spanish text could be fetched:\n  " + "\n  ".join(failures) + "\n"
            "give your own text instead: --text PATH (a file or a folder of UTF-8 text)"
        )
    return documents


def scripture(root: Path) -> Iterator[Document]:
    """SWORD's zText: `.bzs` holds (offset, size, length) of each zlib block in `.bzz`; a block is a book."""
    for index in sorted(root.rglob("*.bzs")):
        blocks = index.with_suffix(".bzz").read_bytes()
        for number, (offset, size, _) in enumerate(struct.iter_unpack("<III", index.read_bytes())):
            markup = zlib.decompress(blocks[offset : offset + size]).decode("utf-8", "replace")
            lines = re.sub(r"<chapter\b[^>]*>|<div\b[^>]*>", "\n", markup)
            text = _squeeze(re.sub(r"<[^>]+>", "", lines).replace("¶", ""))
            if text:
                yield Document(name=f"{index.stem}/{number}", text=text)


def manual_pages(root: Path) -> Iterator[Document]:
    for page in sorted(root.rglob("man/es/man*/*.gz")):
        if page.is_symlink():
            continue
        text = plain_roff(gzip.decompress(page.read_bytes()).decode("utf-8", "replace"))
        if len(text) > 200:  # shorter ones only point to another page
            yield Document(name=page.stem, text=text)


def plain_roff(source: str) -> str:
    """The words of a manual page: macros gone, their arguments kept where they are text."""
    lines = []
    for line in source.splitlines():
        if line.startswith((".", "'")):
            macro, _, rest = line[1:].strip().partition(" ")
            if macro in ("PP", "P", "LP", "TP", "IP", "HP", "sp", "Pp"):
                lines.append("")
            if macro not in _ROFF_TEXT:
                continue
            line = ("\n" if macro in ("SH", "SS", "Sh", "Ss") else "") + rest.replace('"', "")
        lines.append(line)
    text = "\n".join(lines)
    for pattern, plain in _ROFF_ESCAPES:
        text = re.sub(pattern, plain, text)
    return _squeeze(text)


_ROFF_TEXT = {"SH", "SS", "Sh", "Ss", "B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SM"}
_ROFF_ESCAPES = (
    (r"\\f(?:\[\w*\]|\(\w\w|\w)", ""),
    (r"\\m\[\w*\]", ""),
    (r'\\".*', ""),
    (r"\\s[-+]?\d", ""),
    (r"\\\(bu|\\\[bu\]", "•"),
    (r"\\\(aq|\\\[aq\]|\\\(cq|\\\(oq", "'"),
    (r"\\\(Fo|\\\[Fo\]", "«"),
    (r"\\\(Fc|\\\[Fc\]", "»"),
    (r"\\\(lq|\\\(rq|\\\(dq|\\\[dq\]", '"'),
    (r"\\\(em|\\\[em\]", "—"),
    (r"\\\(en|\\\[en\]", "–"),
    (r"\\\(\w\w|\\\[\w+\]|\\\*\(\w\w|\\\*\[\w+\]", " "),
    (r"\\[&,/|^%:)]", ""),
    (r"\\-", "-"),
    (r"\\~|\\0", " "),
    (r"\\e|\\\\", r"\\"),
    (r"\\ ", " "),
)


def reference_book(root: Path) -> Iterator[Document]:
    for book in sorted(root.rglob("*.es.txt.gz")):
        text = gzip.decompress(book.read_bytes()).decode("utf-8", "replace")
        chapters = re.split(r"\n(?=Capítulo \d+\.|Apéndice [A-Z]\.)", text)
        for number, chapter in enumerate(chapters):
            yield Document(name=f"{book.stem}/{number}", text=_squeeze(re.sub(r"(?m)^ {4}", "", chapter)))


def fortunes(root: Path) -> Iterator[Document]:
    """Sayings, one document a collection. The folder `off` (insults to groups of people) stays out."""
    for collection in sorted(root.rglob("fortunes/es/*.fortunes")):
        text = collection.read_bytes().decode("utf-8", "replace")
        yield Document(name=collection.stem, text=_squeeze(re.sub(r"(?m)^%+$", "", text)))


def _squeeze(text: str) -> str:
    """Single blank lines, single spaces, no blanks at the edges."""
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


PACKAGES: dict[str, Callable[[Path], Iterator[Document]]] = {
    "sword-text-sparv": scripture,
    "manpages-es": manual_pages,
    "debian-reference-es": reference_book,
    "fortunes-es": fortunes,
}


# ── Passages with their source as classes ─────────────────────────────────────────────────────────────────────────────

Passage = tuple[str, str, str]


def passages(documents: Iterable[Document], fewest: int = FEWEST) -> list[Passage]:
    """(texto, fuente, parte), each text once, of the parts with enough of them."""
    found = {text: (source, part) for document in documents for text, source, part in _passages_of(document)}
    often = Counter(found.values())
    return [(text, *classes) for text, classes in found.items() if often[classes] >= fewest]


def _passages_of(document: Document) -> Iterator[Passage]:
    source, part = _classes_of(document.name)
    # A line is a chapter in the Bible; elsewhere a blank line ends a paragraph.
    for passage in re.split(r"\n" if source == "biblia" else r"\n\n", document.text):
        text = " ".join(passage.split())
        if len(text) >= SHORTEST:
            yield text, source, part


def _classes_of(name: str) -> tuple[str, str]:
    """Derive the classes from the names of documents: `ot/3`, `debian-reference.es/4`, `ls.1`, `refranes`."""
    for pattern, source in (
        (r"(ot|nt)/\d+", "biblia"),
        (r"debian-reference[^/]*/(\d+)", "referencia de Debian"),
        (r".*\.(\d)\w*", "manual"),
    ):
        if found := re.fullmatch(pattern, name):
            return source, f"{source} {found[1]}"
    return "refranes", f"refranes {name}"
