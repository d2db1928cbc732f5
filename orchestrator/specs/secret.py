"""Values to hide: secrets, which a plan knows by name alone, and variables with a name of a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

REDACTED = "***"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""A name of a variable and of a file, without meaning to a shell, a path or a mount."""
_SENSITIVE = re.compile(
    r"_KEY$|APIKEY|PRIVATE_?KEY|TOKEN(?!IZER)|SECRET|CREDENTIAL|PASSWORD|PASSPHRASE|PASSWD"
    r"|(?:^|_)PASS(?:_|$)|_PWD$|_PAT$|_DSN$",
    re.IGNORECASE,
)
"""TOKENIZERS_PARALLELISM is a switch of a library that many scripts use."""
_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^/\s:@]{0,256}:([^/\s@]{1,1024})@")
"""User and password before the host of an address."""
_OWN_PLACE = ("PWD", "OLDPWD")
"""Variables with a shell's current folder."""
SHORTEST_HIDDEN = 8
"""A shorter value stands in lines by chance, `128` in every second one."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A file in every container of a run; its value is read when it is passed on, and never stored."""

    name: str
    file: str = ""
    """File of the controller; empty: its environment variable of this name."""


@dataclass(frozen=True, kw_only=True)
class Veil:
    """Hides values in what people and programs read."""

    pieces: tuple[str, ...] = ()
    """The longest first: one value may be part of another."""

    def and_over(self, values: Iterable[str]) -> Veil:
        return _veil({*self.pieces, *_pieces(values)})

    def hide(self, text: str) -> str:
        for piece in self.pieces:
            text = text.replace(piece, REDACTED)
        return text


def veil_over(values: Iterable[str]) -> Veil:
    """Each line of each value, as it is and as JSON writes it: events are JSON."""
    return Veil().and_over(values)


def is_sensitive(variable: str, value: str = "") -> bool:
    """Whether its name says so (`…_FILE` holds a path), or its value is an address with a password in it, or is hidden
    already."""
    if value == REDACTED or _LOGIN.match(value):
        return True
    name = variable.upper()
    return bool(_SENSITIVE.search(name)) and not name.endswith("_FILE") and name not in _OWN_PLACE


def concealed(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that are sensitive, with values that are known."""
    return {name: value for name, value in variables.items() if value != REDACTED and is_sensitive(name, value)}


def hidden_of(value: str) -> tuple[str, ...]:
    """Yield the parts of a sensitive variable's value to hide: all of it, and the password of an address alone."""
    found = _LOGIN.match(value)
    return (value, found[1]) if found else (value,)


def redacted(data: Any) -> Any:
    """Plain data with the values of sensitive variables replaced, wherever an `environment` stands in it."""
    if isinstance(data, Mapping):
        return {key: _hidden(value) if key == "environment" else redacted(value) for key, value in data.items()}
    return [redacted(value) for value in data] if isinstance(data, list | tuple) else data


def _pieces(values: Iterable[str]) -> set[str]:
    lines = {line.strip() for value in values for line in value.splitlines()}
    kept = {line for line in lines if len(line) >= SHORTEST_HIDDEN}
    return kept | {json.dumps(line, ensure_ascii=ascii)[1:-1] for line in kept for ascii in (True, False)}


def _veil(pieces: set[str]) -> Veil:
    return Veil(pieces=tuple(sorted(pieces, key=lambda piece: (-len(piece), piece))))


def _hidden(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: REDACTED if is_sensitive(name, value) else value for name, value in environment.items()}
