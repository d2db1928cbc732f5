"""Many names in one word: `node[01-03,07]` is node01, node02, node03, node07, as Slurm and clush write it."""

from __future__ import annotations

import itertools
import re

MAX_NAMES = 1024
"""More than this is a typing error, not a LAN; nor does the environment of a job make an agent expand more."""

_BRACKETS = re.compile(r"\[([^][]*)\]")
_WORD = re.compile(r"(?:[^][,\s]|\[[^][]*\])+")
_WORDS = re.compile(rf"\s*{_WORD.pattern}(?:\s*,\s*{_WORD.pattern})*\s*")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class HostlistError(ValueError):
    """This is no hostlist; the message says why."""


def is_hostlist(text: str) -> bool:
    """Return whether the text stands for more than itself."""
    return any(character in text for character in "[],")


def expand(text: str, *, limit: int = MAX_NAMES) -> tuple[str, ...]:
    """The names in the order written. Leading zeros stay; several brackets in a word give every combination."""
    names: list[str] = []
    for word in _words(text):
        names.extend(_expand_word(word, limit - len(names), text))
    return tuple(names)


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    if _WORDS.fullmatch(text) is None:
        raise HostlistError(f"{text!r} is no list of names such as alpha,beta or node[01-05,07]")
    return [word.strip() for word in _WORD.findall(text)]


def _expand_word(word: str, limit: int, text: str) -> list[str]:
    pieces: list[list[str]] = []
    count = 1
    for index, piece in enumerate(_BRACKETS.split(word)):  # odd pieces stood in brackets
        pieces.append(_expand_ranges(piece, limit, text) if index % 2 else [piece])
        count *= len(pieces[-1])
        if count > limit:
            raise HostlistError(f"{text!r} stands for more than {MAX_NAMES} names")
    return ["".join(parts) for parts in itertools.product(*pieces)]


def _expand_ranges(ranges: str, limit: int, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise HostlistError(f"{text!r}: {part.strip()!r} in brackets is neither a number nor a range such as 01-05")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise HostlistError(f"{text!r}: the range {part.strip()} runs backwards")
        if int(last) - int(first) >= limit - len(numbers):
            raise HostlistError(f"{text!r} stands for more than {MAX_NAMES} names")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers
