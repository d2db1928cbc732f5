"""Real traces without internet: calls of Python's standard library, recorded with sys.setprofile.

A request runs some steps of a service on random inputs. An anomaly is a fault in one of its steps: an input that makes
it raise, a slow step, or two steps in the wrong order.
"""

from __future__ import annotations

import ast
import configparser
import csv
import difflib
import email
import html.parser
import io
import json
import pprint
import random
import shlex
import statistics
import sys
import textwrap
import time
import tokenize
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from trainer.data.trace_files import Trace

ANOMALIES = 0.15
"""Share of requests with a fault."""
MOST_CALLS = 256
DEPTH = 4
"""Deepest calls that are kept; the time of deeper ones is part of their callers'."""
SLOW_S = (0.003, 0.010)
"""Duration of a slow step: others take some tenths of a millisecond."""
BROKEN = "\x00[unterminated {( \"'"

Step = Callable[[str], object]


def record(requests: int, seed: int) -> Iterator[Trace]:
    """Record requests, the same ones with the same faults for one seed. Durations are CPU time: waiting for other
    programs is no fault."""
    chance = random.Random(seed)  # noqa: S311 - a stream of requests, not a secret
    # First calls fill caches (compiled patterns, imports).
    for service in SERVICES.values():
        _run(service, _text(chance))
    for number in range(requests):
        name = chance.choice(list(SERVICES))
        steps, text = list(SERVICES[name]), _text(chance)
        fault = chance.choice(FAULTS) if chance.random() < ANOMALIES else None
        if fault:
            steps = fault(steps, chance)
        recorder, before = _Recorder(), sys.getprofile()
        sys.setprofile(recorder.notice)
        try:
            _run(steps, text)
        finally:
            sys.setprofile(before)
        yield Trace(
            id=f"{name}-{number}",
            events=recorder.events,
            parents=recorder.parents,
            features={"duration_us": recorder.durations},
            label=float(fault is not None),
        )


def _run(steps: Sequence[Step], text: str) -> None:
    for step in steps:
        try:
            step(text)
        except (ValueError, SyntaxError, LookupError, configparser.Error, tokenize.TokenError) as error:
            _report(error)


def _report(error: Exception) -> str:
    """A service reports a failed step."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200)


@dataclass(kw_only=True)
class _Recorder:
    events: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    held_up_since: float = 0.0
    open: list[int] = field(default_factory=list)
    """Calls that have not returned, outermost first; -1 for one that is not kept."""

    def notice(self, frame: FrameType, kind: str, _argument: object) -> None:
        now = time.thread_time()
        if frame.f_code.co_name == "fault":  # it would reveal the label; its time counts as the step's
            self.held_up_since = now if kind == "call" else self.held_up_since
        elif kind == "call":
            is_recorded = len(self.events) < MOST_CALLS and len(self.open) < DEPTH
            if is_recorded:
                self.events.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}")
                self.parents.append(self.open[-1] if self.open else -1)
                self.begins.append(self.held_up_since or now)
                self.held_up_since = 0.0
                self.durations.append(0.0)
            self.open.append(len(self.events) - 1 if is_recorded else -1)
        elif kind == "return" and self.open:
            call = self.open.pop()
            if call >= 0:
                self.durations[call] = (now - self.begins[call]) * 1e6


# ── Faults ────────────────────────────────────────────────────────────────────────────────────────


def _raises(steps: list[Step], chance: random.Random) -> list[Step]:
    at = chance.randrange(len(steps))
    healthy = steps[at]

    def fault(text: str) -> object:
        return healthy(text + BROKEN)

    return [*steps[:at], fault, *steps[at + 1 :]]


def _slow(steps: list[Step], chance: random.Random) -> list[Step]:
    at, seconds = chance.randrange(len(steps)), chance.uniform(*SLOW_S)
    healthy = steps[at]

    def fault(text: str) -> object:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        return healthy(text)

    return [*steps[:at], fault, *steps[at + 1 :]]


def _wrong_order(steps: list[Step], chance: random.Random) -> list[Step]:
    at = chance.randrange(len(steps) - 1)
    return [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]]


FAULTS = (_raises, _slow, _wrong_order)


# ── Services ──────────────────────────────────────────────────────────────────────────────────────


def _text(chance: random.Random) -> str:
    words = ("alpha", "beta", "gamma", "delta", "omega", "node", "rank", "step")
    return " ".join(chance.choice(words) for _ in range(chance.randint(3, 24)))


def _quoted(text: str) -> str:
    return repr(text) if BROKEN not in text else text


def _settings(text: str) -> object:
    parser = configparser.ConfigParser()
    lines = "\n".join(f"{word}{place} = {place}" for place, word in enumerate(text.split()))
    parser.read_string(f"[main]\n{lines}" if BROKEN not in text else text)
    return dict(parser["main"])


def _document(text: str) -> object:
    return json.loads(json.dumps({"words": text.split()}, indent=1) if BROKEN not in text else text)


def _table(text: str) -> object:
    rows = [[word, place] for place, word in enumerate(text.split())]
    csv.writer(out := io.StringIO()).writerows(rows)
    return list(csv.DictReader(io.StringIO(out.getvalue()), strict=True))


def _program(text: str) -> object:
    return ast.unparse(ast.parse(f"words = {_quoted(text)}\nprint(len(words))"))


def _tokens(text: str) -> object:
    return list(tokenize.generate_tokens(io.StringIO(f"x = ({_quoted(text)})\n").readline))


def _figures(text: str) -> object:
    lengths = [len(word) for word in text.split()]
    return statistics.linear_regression(range(len(lengths)), lengths if BROKEN not in text else lengths[1:])


def _page(text: str) -> object:
    reader = html.parser.HTMLParser()
    reader.feed("".join(f"<p class={word}>{word}</p>" for word in text.split()))
    reader.close()
    return reader.rawdata


def _address(text: str) -> object:
    query = urllib.parse.urlencode([("q", word) for word in text.split()])
    host = "lan.example" if BROKEN not in text else "[lan.example"
    return urllib.parse.parse_qs(urllib.parse.urlsplit(f"http://{host}/find?{query}").query)


def _letter(text: str) -> object:
    letter = email.message_from_string(f"Subject: {text[:30]}\nTo: a@lan.example\n\n{text}")
    return [part.get_content_type() for part in letter.walk()]


def _difference(text: str) -> object:
    words = text.split()
    return list(difflib.unified_diff(words, sorted(words)))


def _words(text: str) -> object:
    return shlex.join(shlex.split(text))


def _printed(text: str) -> object:
    return pprint.pformat({word: list(word) for word in text.split()}, width=40)


def _wrapped(text: str) -> object:
    return textwrap.indent(textwrap.fill(text, 30), "  ")


SERVICES: dict[str, tuple[Step, ...]] = {
    "web": (_address, _words, _page, _document),
    "build": (_settings, _program, _tokens, _wrapped),
    "report": (_table, _figures, _printed, _wrapped),
    "mail": (_letter, _words, _difference, _printed),
    "search": (_address, _document, _difference, _table),
    "audit": (_settings, _letter, _figures, _document),
}
