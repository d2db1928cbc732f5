"""Signs by which a coordinator decides: written during a run, judged again by the pure rules.

    python -m benchmarks.alarm_signs FILE ARGUMENTS OF THE AGENT…

is the agent, which also writes FILE: a line with the limits, then a line per look at which signs have changed or
something was reported. A line holds, of each rank, the values that differ from the line before.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from contract import liveness, liveness_watch
from contract.json_reader import from_json
from contract.liveness import LivenessLimits
from contract.liveness_watch import LivenessReport, LivenessWatch
from contract.rank_signs import RankSigns

_DEFAULTS = asdict(RankSigns(rank=0))
_SHORT = {"age_s": 1, "cpu": 3, "stood_s": 1, "io_bytes_s": 0}
"""Digits after the point that are written."""


class RecordingWatch(LivenessWatch):
    """The watch of a coordinator that also writes the signs, until the ranks restart."""

    path: Path
    is_first = True

    def __init__(self, limits: LivenessLimits, now: float, *, independent: bool = False) -> None:
        super().__init__(limits, now, independent=independent)
        self._began, self._written = now, {}  # type: tuple[float, dict[str, dict[str, Any]]]
        self._ended: Collection[int] = ()
        self._file = self.path.open("w", encoding="utf-8", buffering=1) if self.is_first else None
        self._write({"certain_s": limits.certain_s, "independent": independent})

    def look(self, signs: Sequence[RankSigns], now: float, ended: Collection[int] = ()) -> tuple[LivenessReport, ...]:
        short = {str(one.rank): _short(one) for one in signs}
        type(self).is_first = False
        reports = super().look([_rank_signs(values) for values in short.values()], now, ended)
        if short != self._written or set(ended) != set(self._ended) or reports:
            changed = {rank: _changes(self._written.get(rank, _DEFAULTS), values) for rank, values in short.items()}
            gone = sorted(set(self._written) - set(short))
            line = {"at": round(now - self._began, 3), "signs": changed, "gone": gone, "ended": sorted(ended)}
            self._write({name: value for name, value in line.items() if value or name in ("at", "signs")})
            self._written, self._ended = short, tuple(ended)
        return reports

    def summary(self, seconds: float) -> str:
        """The sentence about a run that has ended well."""
        self._write({"over": seconds})
        return super().summary(seconds)

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(values, separators=(",", ":"), ensure_ascii=False) + "\n")


def save(written: Path, record: Path, here: int) -> None:
    """Copy the file that a run has written, with the number of the line at which it hangs."""
    header, _, looks = written.read_text("utf-8").partition("\n")
    record.write_text(json.dumps({**json.loads(header), "here": here}) + "\n" + looks, "utf-8")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Record of a run, decoded."""

    certain_s: float
    independent: bool
    here: int
    """Number of the line at which the script hangs."""
    looks: tuple[tuple[float, tuple[dict[str, Any], ...], tuple[int, ...]], ...]
    """Time, fields of the signs of each rank, and ranks that have ended."""
    over_s: float | None
    """Duration of a run that has ended well."""


@cache
def read(record: Path) -> Recorded:
    header, *lines = map(json.loads, record.read_text("utf-8").splitlines())
    known: dict[str, dict[str, Any]] = {}
    looks, over_s = [], None
    for line in lines:
        if (over_s := line.get("over")) is not None:
            break
        for rank in line.get("gone", ()):
            del known[rank]
        for rank, changed in line["signs"].items():
            values = {**known.get(rank, _DEFAULTS), **changed}
            groups = {name: tuple(numbers) for name, numbers in values["groups"].items()}
            known[rank] = {**values, "groups": groups, "libraries": tuple(values["libraries"])}
        looks.append((line["at"], tuple(known.values()), tuple(line.get("ended", ()))))
    return Recorded(
        certain_s=header["certain_s"], independent=header["independent"], here=header["here"], looks=tuple(looks),
        over_s=over_s,
    )  # fmt: skip


def messages(recorded: Recorded, rules: ModuleType = liveness, watching: ModuleType = liveness_watch) -> Iterator[str]:
    """Judge a record again: the lines for people, in order; the last one may be about a run that has ended well."""
    limits = rules.LivenessLimits.scaled(recorded.certain_s)
    watch = watching.LivenessWatch(limits, 0.0, independent=recorded.independent)
    for at, signs, ended in recorded.looks:
        for report in watch.look([RankSigns(**values) for values in signs], at, ended):
            again = isinstance(report, watching.ProgressAgain)
            yield f"· progress again after {report.seconds:.0f} s" if again else _line(report)
    if recorded.over_s is not None and (summary := watch.summary(recorded.over_s)):
        yield summary


def _line(decision: Any) -> str:
    return f"{decision.message} → {decision.fix}" if decision.fix else str(decision.message)


def _short(one: RankSigns) -> dict[str, Any]:
    values = asdict(one)
    for name, digits in _SHORT.items():
        values[name] = None if values[name] is None else round(values[name], digits)
    return values


def _rank_signs(values: Mapping[str, Any]) -> RankSigns:
    """The signs as they are read again, so that both decide the same."""
    return from_json(RankSigns, values)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if value != before[name]}


if __name__ == "__main__":
    from trainer.agent import coordinator

    RecordingWatch.path = Path(sys.argv.pop(1))
    coordinator.LivenessWatch = RecordingWatch  # type: ignore[misc]
    runpy.run_module("trainer.agent", run_name="__main__", alter_sys=True)
