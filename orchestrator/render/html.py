"""HTML made of elements: everything that is no element yet is text, and escaped (ADR 46)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from orchestrator.render.printable import printable

_NO_END = {"meta", "br", "link"}
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_NOT_TEXT = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
"""Code points that HTML forbids."""


class Html(str):
    """HTML that `tag` has made. Nothing else may construct it, apart from constants."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]


def text(value: object) -> Html:
    """Escaped text without control characters, whatever it holds: newlines and tabs stay."""
    lines = str(value).split("\n")
    return Html(escape(_NOT_TEXT.sub("", "\n".join(map(printable, lines))), quote=True))


def tag(name: str, /, *content: Content, **attributes: object) -> Html:
    """An element. Attributes: `class_` stands for class, `_` for `-`; None and False are left out.

    ValueError: a name of an element or of an attribute is none. Names are constants of ours.
    """
    words = [_named(name)]
    for key, value in attributes.items():
        if value is True:
            words.append(_named(key.rstrip("_").replace("_", "-")))
        elif value is not None and value is not False:
            words.append(f'{_named(key.rstrip("_").replace("_", "-"))}="{text(value)}"')
    begin = f"<{' '.join(words)}>"
    return Html(begin) if name in _NO_END else Html(f"{begin}{''.join(_inner(content))}</{name}>")


def join(*content: Content) -> Html:
    """Elements and texts one after the other."""
    return Html("".join(_inner(content)))


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} names no element and no attribute")
    return name


def _inner(content: Iterable[Content]) -> Iterable[str]:
    for one in content:
        if isinstance(one, Html):
            yield one
        elif isinstance(one, str | int | float):
            yield text(one)
        elif one is not None:
            yield from _inner(one)
