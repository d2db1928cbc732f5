"""Passages of the Spanish texts in Debian's packages (data/spanish.py) with where they come from as their classes."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from trainer.data import spanish
from trainer.data.texts import Document

TEXT_COLUMN = "texto"
HEADS = {"fuente": 0.4, "parte": 0.6}
FEWEST = 20
"""Passages of a class: a class with fewer can be neither learned nor evaluated."""
SHORTEST = 30
"""Characters: shorter ones are titles and marks."""

Passage = tuple[str, str, str]


def fetch(say: spanish.Say) -> list[Passage]:
    return passages(spanish.fetch(say))


def passages(documents: Iterable[Document], fewest: int = FEWEST) -> list[Passage]:
    """(texto, fuente, parte), each text once, of the parts with enough of them."""
    found = {text: (source, part) for document in documents for text, source, part in _passages_of(document)}
    often = Counter(found.values())
    return [(text, *classes) for text, classes in found.items() if often[classes] >= fewest]


def as_csv(found: Iterable[Passage]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((TEXT_COLUMN, *HEADS))
    writer.writerows(found)
    return text.getvalue()


def _passages_of(document: Document) -> Iterator[Passage]:
    source, part = _classes_of(document.name)
    # A line is a chapter in the Bible; elsewhere a blank line ends a paragraph.
    for passage in re.split(r"\n" if source == "biblia" else r"\n\n", document.text):
        text = " ".join(passage.split())
        if len(text) >= SHORTEST:
            yield text, source, part


def _classes_of(name: str) -> tuple[str, str]:
    """From the names that data/spanish.py gives: `ot/3`, `debian-reference.es/4`, `ls.1`, `refranes`."""
    for pattern, source in (
        (r"(ot|nt)/\d+", "biblia"),
        (r"debian-reference[^/]*/(\d+)", "referencia de Debian"),
        (r".*\.(\d)\w*", "manual"),
    ):
        found = re.fullmatch(pattern, name)
        if found:
            return source, f"{source} {found[1]}"
    return "refranes", f"refranes {name}"
