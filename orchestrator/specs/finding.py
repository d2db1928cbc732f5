"""A finding of a check, with the texts of its page in docs/findings/."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.specs.finding_pages import texts_of


class Severity(StrEnum):
    """Severity of a finding: an error refuses a launch."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Fix:
    """Action that `orch doctor --fix` may take for a finding, after the user has agreed."""

    what: str
    """The action in words: `start Docker`."""
    on_node: tuple[str, ...] = ()
    """Command to be run there; begins with `sudo -n` where only root may run it."""
    orch: tuple[str, ...] = ()
    """Words of an `orch` command, where it is one."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing, with its cause and what to do."""

    id: str
    """Stable, `area.fault`: scripts and documentation rely on it."""
    severity: Severity
    node: str
    message: str
    cause: str = ""
    fix: str = ""
    auto_fix: Fix | None = None
    """None where only a person should do it."""

    @classmethod
    def of(cls, id: str, node: str, /, *, case: str = "", fixable: bool = True, **values: object) -> Finding:
        """The finding of this id on this node, its texts filled with these values and with `node`.

        `case` chooses where the page has several texts or severities. Not `fixable`: without `auto_fix`.
        """
        texts, filled = texts_of(id), {"node": node, **values}
        auto_fix = texts.auto_fix if fixable else None
        return cls(
            id=id,
            severity=Severity(_chosen(texts.severity, case)),
            node=node,
            message=_fill(_chosen(texts.message, case), filled),
            cause=_fill(_chosen(texts.cause, case), filled),
            fix=_fill(_chosen(texts.fix, case), filled),
            auto_fix=None if auto_fix is None else Fix(
                what=_fill(auto_fix["what"], filled),
                on_node=_argv(auto_fix.get("on_node", ()), filled),
                orch=_argv(auto_fix.get("orch", ()), filled),
            ),
        )  # fmt: skip


def _chosen(text: str | Mapping[str, str], case: str) -> str:
    return text if isinstance(text, str) else text[case]


def _fill(text: str, values: Mapping[str, object]) -> str:
    return _FORMATTER.vformat(text, (), values)


def _argv(words: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """A command's words; one that is the name of several values stands for all of them."""
    argv: list[str] = []
    for word in words:
        value = values.get(word.strip("{}"))
        argv += map(str, value) if isinstance(value, list | tuple) else [_fill(word, values)]
    return tuple(argv)


class _Formatter(string.Formatter):
    """`{names}` lists several values with commas; `{name!q}` is quoted for a shell: a line that people paste."""

    def convert_field(self, value: object, conversion: str | None) -> object:
        if conversion != "q":
            return super().convert_field(value, conversion)
        return shlex.join(map(str, value)) if isinstance(value, list | tuple) else shlex.quote(str(value))

    def format_field(self, value: object, format_spec: str) -> str:
        listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        return str(super().format_field(listed, format_spec))


_FORMATTER = _Formatter()


def heaviest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors before warnings before notes, else in the order given."""
    return tuple(sorted(findings, key=lambda finding: _WEIGHT.index(finding.severity)))


_WEIGHT = (Severity.ERROR, Severity.WARNING, Severity.INFO)
