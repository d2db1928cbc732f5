"""The rules of liveness, on the signs that real runs have sent: healthy scripts, and hangs.

`python -m benchmarks.alarms --record tests/fixtures/alarms` writes these records anew, at true time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from benchmarks.alarm_signs import messages, read
from benchmarks.alarms import CASES, Case, faults_of
from contract import liveness, liveness_watch
from tests.each_case import failures_of

RECORDS = Path(__file__).parents[1] / "fixtures/alarms"
RECORDED = [case for case in CASES if (RECORDS / f"{case.name}.jsonl").exists()]
SOURCE, WATCH = Path(liveness.__file__), Path(liveness_watch.__file__)
CHANGED = "changed_liveness"


def test_what_is_said_of_each_recorded_run_is_right() -> None:
    assert failures_of(_is_right, RECORDED) == []


def test_all_runs_are_recorded() -> None:
    assert {case.name for case in RECORDED} == {path.stem for path in RECORDS.iterdir()} == {one.name for one in CASES}
    assert sum(case.is_hang for case in RECORDED) >= 10


def _is_right(case: Case) -> None:
    assert list(_faults(case)) == []


RULES: tuple[tuple[str, str, str], ...] = (
    ("stopped, blocked", "if held := [one for one in part if is_held(one, limits.note_s)]:", "if held := []:"),
    ("not joined", "(decision := _not_joined(part, still_s))", "(decision := None)"),
    ("ended", "if gone:", "if False:"),
    ("deadlock", "if _differ(part):", "if False:"),
    ("network", "if len(part) < max(one.world for one in part) or any(", "if True or any("),
    (
        "waited for",
        "return _waited_for(others, waiting, still_s, limits) if still_s >= note_s else None",
        "return None",
    ),
    ("native", "    if _is_native(one, limits):", "    if False:"),
    ("reading", "    if one.io_bytes_s >= IO_BYTES_S:", "    if False:"),
    ("sleeping", "    if one.sleeps:", "    if False:"),
    ("idle", 'return "idle" if cpu < IDLE else "computing"', 'return "computing"'),
    ("all idle", "(decision := _all_idle(part, history))", "(decision := None)"),
    ("all idle: CPU time", "one.cpu is None or one.cpu >= ALL_IDLE or", ""),
    ("all idle: a server", "if any(one.listens for one in part) and not history.trained:", "if False:"),
    ("the longest pause", "max(limits.note_s, 3 * history.longest_pause_s)", "limits.note_s"),
    ("each its own model", "    if not collectives and steps >= (", "    if False and steps >= ("),
    ("scalars alone", "if not 0 < largest <= SCALARS or", "if True or"),
    ("scalars: gradients are larger", "if not 0 < largest <= SCALARS or", "if"),
    ("--independent", "None if history.independent else", ""),
    ("other libraries", "or any(one.libraries for one in part):", ":"),
)
"""A rule, its text in contract/liveness.py, and the text without it."""


def test_without_any_one_of_the_rules_a_recorded_run_is_judged_wrongly() -> None:
    assert failures_of(_is_missed, RULES) == []


def _is_missed(_rule: str, text: str, without: str) -> None:
    source = SOURCE.read_text("utf-8")
    assert source.count(text) == 1, "this text is to be found once"
    with _changed(source.replace(text, without)) as (rules, watching):
        wrong = (case for case in RECORDED if list(_faults(case, rules, watching)))
        assert next(wrong, None), "no recorded run shows its absence"


@contextmanager
def _changed(source: str) -> Iterator[tuple[ModuleType, ModuleType]]:
    """Both modules of the rules, the first one from this source."""
    watch = WATCH.read_text("utf-8").replace("from contract.liveness import", f"from {CHANGED} import")
    modules = ModuleType(CHANGED), ModuleType(f"{CHANGED}_watch")
    try:
        for module, text in zip(modules, (source, watch), strict=True):
            sys.modules[module.__name__] = module
            exec(compile(text, module.__name__, "exec"), module.__dict__)  # noqa: S102  # our own source
        yield modules
    finally:
        for module in modules:
            sys.modules.pop(module.__name__, None)


def _faults(case: Case, rules: ModuleType = liveness, watching: ModuleType = liveness_watch) -> Iterator[str]:
    recorded = read(RECORDS / f"{case.name}.jsonl")
    return faults_of(case, list(messages(recorded, rules, watching)), recorded.here)
