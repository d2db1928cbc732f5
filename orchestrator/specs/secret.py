"""Values to hide: secrets, which a plan knows by name alone, and variables with a name of a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.specs.secret_forms import REDACTED, secrets_in

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""A name of a variable and of a file, without meaning to a shell, a path or a mount."""
_SENSITIVE = re.compile(
    r"_KEY$|ACCESS_?KEY|APIKEY|PRIVATE_?KEY|TOKEN(?!S)|(?:API|AUTH|ACCESS|REFRESH)_?TOKENS|SECRET|CREDENTIAL|PASSWORD"
    r"|PASSPHRASE|PASSWD|CONN(?:ECTION)?_?STR(?:ING)?|WEBHOOK(?:_URL)?$|(?:^|_)(?:PASS|BEARER|CREDS?|JWT|COOKIE)(?:_|$)"
    r"|_PWD$|_PAT$|_DSN$"
)
_HARMLESS = re.compile(
    r"TOKENI[SZ]|(?:BOS|EOS|PAD|UNK|MASK|SEP|CLS|MAX|MIN|NEW|NUM|N|PER|IMAGE|SPECIAL)_TOKEN|TOKEN_(?:IDS?|COUNT|TYPE|LENGTH)"
    r"|(?:SORT|ORDER|GROUP|CACHE|PRIMARY|FOREIGN|PARTITION|PUBLIC|METRIC|INDEX|IMAGE|LABEL|TEXT|FEATURE|DATA|STATE)_KEY"
)
"""Parts of the names of counts, columns and switches: MAX_TOKENS, SORT_KEY, TOKENIZERS_PARALLELISM."""
_SENSITIVE_UNLESS_PLAIN = re.compile(r"KEY|(?:.*_)?(?:AUTH|AUTHORIZATION|COOKIES)")
_PLAIN = re.compile(r"[A-Za-z_.-]{1,12}|[0-9.]{1,6}")
"""Value of a switch or the name of a column: `KEY=loss`, `AUTH=basic`, `USE_COOKIES=1`."""
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

    @property
    def typed(self) -> str:
        """Value of `--secret`."""
        return f"{self.name}={self.file}" if self.file else self.name


@dataclass(frozen=True, kw_only=True)
class Veil:
    """Hides values in what people and programs read."""

    pieces: tuple[str, ...] = ()
    """The longest first: one value may be part of another."""

    def and_over(self, values: Iterable[str]) -> Veil:
        pieces = {*self.pieces, *_pieces(values)}
        return Veil(pieces=tuple(sorted(pieces, key=lambda piece: (-len(piece), piece))))

    def hide(self, text: str) -> str:
        for piece in self.pieces:
            text = text.replace(piece, REDACTED)
        return text


def veil_over(values: Iterable[str]) -> Veil:
    """Each line of each value, as it is and as JSON writes it: events are JSON."""
    return Veil().and_over(values)


def is_sensitive(variable: str, value: str = "") -> bool:
    """Return whether its name says so (`…_FILE` holds a path), its value has the form of a secret, or is hidden
    already."""
    if value == REDACTED or secrets_in(value):
        return True
    name = variable.upper().replace("-", "_")
    if name.endswith("_FILE") or name in _OWN_PLACE:
        return False
    if _SENSITIVE_UNLESS_PLAIN.fullmatch(name):
        return not _PLAIN.fullmatch(value)
    return bool(_SENSITIVE.search(_HARMLESS.sub("", name)))


def concealed(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that are sensitive, with values that are known."""
    return {name: value for name, value in variables.items() if value != REDACTED and is_sensitive(name, value)}


def hidden_of(value: str) -> tuple[str, ...]:
    """Parts of a sensitive variable's value to hide: all of it, and each token or password in it alone."""
    return (value, *secrets_in(value))


def redacted(data: Any) -> Any:
    """Plain data with the values of sensitive variables replaced, wherever an `environment` stands in it."""
    if isinstance(data, Mapping):
        return {key: _hidden(value) if key == "environment" else redacted(value) for key, value in data.items()}
    return [redacted(value) for value in data] if isinstance(data, list | tuple) else data


def _pieces(values: Iterable[str]) -> set[str]:
    lines = {line.strip() for value in values for line in value.splitlines()}
    hidden = {line for line in lines if len(line) >= SHORTEST_HIDDEN}
    return hidden | {json.dumps(line, ensure_ascii=ascii)[1:-1] for line in hidden for ascii in (True, False)}


def _hidden(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: REDACTED if is_sensitive(name, value) else value for name, value in environment.items()}
