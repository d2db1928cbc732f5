"""Run readers on mutated texts for a given time, and record errors that they do not declare."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import FrameType

from benchmarks.fuzz.mutate import mutated
from benchmarks.fuzz.reader import Reader

SLOW_S = 5.0
"""Processor time for one text."""


@dataclass
class Fuzzed:
    """Result of fuzzing one reader."""

    texts: dict[str, int] = field(default_factory=dict)
    """Number of texts per reader."""
    faults: dict[str, str] = field(default_factory=dict)
    """Error and place, and the first text that caused it."""


def fuzz(readers: Mapping[str, Reader], *, seconds: float, seed: int) -> Fuzzed:
    """Run each reader in turn, with texts that depend only on the seed, for the given processor time."""
    found = Fuzzed(texts=dict.fromkeys(readers, 0))
    until = time.process_time() + seconds
    signal.signal(signal.SIGPROF, _too_slow)
    while True:
        for name, reader in readers.items():
            if time.process_time() >= until:
                return found
            number = found.texts[name] = found.texts[name] + 1
            random = Random(f"{seed} {name} {number}")  # noqa: S311  # texts, no secrets
            text = mutated(random.choice(reader.texts), random)
            if fault := _fault(reader, text):
                found.faults.setdefault(f"{name}: {fault}", f"number {number}: {text[:300]!r}")


class TooSlow(BaseException):
    """Error that is no `Exception`, so that no reader catches it."""


def _fault(reader: Reader, text: str) -> str:
    """Return the problem; empty if there was only a result or a declared error."""
    signal.setitimer(signal.ITIMER_PROF, SLOW_S)
    try:
        reader.read(text)
    except reader.declared:
        return ""
    except (Exception, TooSlow) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/lib/python" not in frame.filename]
        place = (ours or frames)[-1]
        return f"{type(error).__name__} in {place.name}, {place.filename}:{place.lineno}: {str(error)[:80]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow(f"more than {SLOW_S:.0f} s for one text")


def peak_mib() -> float:
    """Peak memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
