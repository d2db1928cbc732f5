"""From what a failed rank left behind to its cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.checks.causes.catalogue import RULES
from orchestrator.checks.causes.last_words import LastWords, last_words
from orchestrator.checks.causes.rule import Cause, Remains, Rule

TAIL = 40
"""Lines before a rank's end in which a sign counts; further up, what was said did not end it."""
MOST_EVIDENCE = 8
_CPP_FRAME = re.compile(r"frame #\d+: |Exception raised from |<omitting python frames>|\s*$")
_GENERAL = next(rule for rule in RULES if rule.id == "code.exception")
_LIMIT = next(rule for rule in RULES if rule.id == "memory.limit")
_LOST = next(rule for rule in RULES if rule.id == "node.lost")
_EXIT = next(rule for rule in RULES if rule.id == "code.exit")


def diagnose(remains: Remains, known: Mapping[str, str]) -> Cause | None:
    """The cause, with `known` (node, rank, run) put into its words. None where nothing says anything.

    The engine's word comes first, then the kernel's, the exception that ended the rank, what the rank said before,
    how it ended, and what torchrun says.
    """
    words = last_words(remains.own) or last_words(remains.agent if not remains.own else ())
    frame = (words.frame if words else "") or remains.reported_frame
    said = _exception_lines(remains, words)
    if remains.oom_killed:
        return _cause(_LIMIT, None, ("the engine's flag OOMKilled", *said[-1:]), frame, known)
    if remains.exit_code is None and not remains.reported:
        return _cause(_LOST, None, remains.own[-2:], frame, known)
    own = tuple(line for line in remains.own or remains.agent if not _CPP_FRAME.match(line))[-TAIL:]
    for lines in (remains.kernel, said, words.earlier if words else ()):
        if found := _first(lines, frame, known):
            return _nearer(found, own, known)
    if said and (words or (remains.exit_code or 0) >= 0):
        return _cause(_GENERAL, None, _once(said), frame, known)
    by_end = next((rule for rule in RULES if remains.exit_code in rule.exit_codes), None)
    return (
        _first(own, frame, known)
        or (_cause(by_end, None, _how_it_ended(remains), frame, known) if by_end else None)
        or _first(remains.agent, frame, known)
        or (_cause(_EXIT, None, _how_it_ended(remains), frame, known) if remains.exit_code else None)
    )


def _exception_lines(remains: Remains, words: LastWords | None) -> tuple[str, ...]:
    """The rank's own report where it gave one: it is whole, and what stands in its log may be another thread's."""
    reported = tuple(remains.reported.splitlines())
    return (*reported, *(words.message if words else ()))


def _how_it_ended(remains: Remains) -> tuple[str, ...]:
    """Of a rank that gave no reason."""
    return (f"exit code {remains.exit_code}", *(f"its last line: {line.strip()}" for line in remains.own[-1:]))


def _first(lines: Sequence[str], frame: str, known: Mapping[str, str], rules: Sequence[Rule] = RULES) -> Cause | None:
    """By the first rule of the catalogue that finds a sign: it goes from the particular to the general."""
    for rule in rules:
        hits = [(line, found) for line in lines if (found := rule.read(line))]
        if hits:
            return _cause(rule, hits[0][1], _once(line for line, _ in hits), frame, known)
    return None


def _nearer(found: Cause, own: Sequence[str], known: Mapping[str, str]) -> Cause:
    """Where an exception says little, such as that a connection was not made, the lines before it may say why."""
    area = found.id.partition(".")[0]
    if not next(rule for rule in RULES if rule.id == found.id).vague:
        return found
    nearer = _first(own, found.frame, known, [rule for rule in RULES if rule.id.startswith(f"{area}.")])
    return nearer or found


def _cause(
    rule: Rule, found: re.Match[str] | None, evidence: Sequence[str], frame: str, known: Mapping[str, str]
) -> Cause:
    values = _Known({**known, **{name: text for name, text in (found.groupdict() if found else {}).items() if text}})
    return Cause(
        id=rule.id,
        kind=rule.kind,
        what=rule.what.format_map(values),
        todo=tuple(line.format_map(values) for line in rule.todo),
        evidence=tuple(evidence[:MOST_EVIDENCE]),
        frame=frame,
        page=rule.page,
    )


class _Known(dict[str, str]):
    """What a sign did not tell is a question mark in the words."""

    def __missing__(self, name: str) -> str:
        return "?"


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.strip() for line in lines))
