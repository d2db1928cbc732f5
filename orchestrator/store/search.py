"""Search for wanted lines in the bytes of a segment: decoding a line takes ten times as long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.store.segments import LONGEST

_WORD = re.compile(rb"[a-z0-9]+")
_INDENTED = (b'"text": " ', b'"text": "\\t')


@dataclass(frozen=True, kw_only=True)
class Needles:
    """Texts in lower case, of letters and digits, which each wanted line has in any case; none: any line will do."""

    texts: tuple[bytes, ...] = ()
    near: Callable[[bytes], bool] | None = None
    """True if these lines, in lower case, may have a wanted one. Indented lines continue the one before them, which
    may be the last of the segment before theirs."""

    def excludes(self, content: bytes, before: Callable[[], bytes]) -> bool:
        """Return whether no line of a segment is wanted; `before` gives the content of the segment before it."""
        if not self.texts and self.near is None:
            return False
        lowered = content.lower()
        if not all(text in lowered for text in self.texts):
            return True
        if self.near is None or self.near(lowered):
            return False
        return not (any(mark in content for mark in _INDENTED) and self.near(before().lower()))

    def lines(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that may be wanted, each with its place in the segment, in the order written."""
        if not self.texts:
            for place, raw in enumerate(content.split(b"\n")):
                if raw and len(raw) <= LONGEST:
                    yield place, raw
            return
        lowered, rarest = content.lower(), max(self.texts, key=len)
        at = lowered.find(rarest)
        while at >= 0:
            start, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
            end = len(content) if end < 0 else end
            if end - start <= LONGEST and all(lowered.find(text, start, end) >= 0 for text in self.texts):
                yield start, content[start:end]
            at = lowered.find(rarest, end)


ANY_LINE = Needles()


def words(texts: Iterable[str]) -> Needles:
    """Find lines with all of these texts: by the words in them, which are the same in a file."""
    found = (word for text in texts for word in _WORD.findall(text.lower().encode("utf-8", "replace")))
    return Needles(texts=tuple(dict.fromkeys(found)))
