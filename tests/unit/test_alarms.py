"""The rules of liveness, on the signs that real runs have sent: healthy scripts, and hangs.

`python -m benchmarks.alarms --record tests/fixtures/alarms` writes these records again, at true time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from benchmarks.alarm_cases import CASES, Case, faults_of
from benchmarks.alarm_signs import messages, read
from contract import liveness, liveness_watch
from tests.each_case import failures_of

RECORDS = Path(__file__).parents[1] / "fixtures/alarms"
RECORDED = [case for case in CASES if (RECORDS / f"{case.name}.jsonl").exists()]
SOURCE, WATCH = Path(liveness.__file__), Path(liveness_watch.__file__)
CHANGED = "changed_liveness"


def test_the_report_of_each_recorded_run_is_right() -> None:
    assert failures_of(_is_right, RECORDED) == []


def test_all_runs_are_recorded() -> None:
    assert {case.name for case in RECORDED} == {path.stem for path in RECORDS.iterdir()} == {one.name for one in CASES}
    assert sum(case.is_hang for case in RECORDED) >= 10


def _is_right(case: Case) -> None:
    assert list(_faults(case)) == []


RULES: tuple[tuple[str, str, str], ...] = (
    ("hang_stopped", "if held := [one for one in part if is_held(one, limits.held_s)]:", "if held := []:"),
    ("hang_share", "if held := [one for one in part if is_held(one, limits.held_s)]:", "if held := []:"),
    ("hang_never_joins", "(decision := _not_joined(part, still_s))", "(decision := None)"),
    ("hang_unnoticed_exit", "if gone:", "if False:"),
    ("hang_two_groups", "if _differ(part):", "if False:"),
    ("hang_two_collectives", "return missed or _calls_differ(part)", "return missed"),
    ("hang_cut_link", "if len(part) < max(one.world for one in part) or any(", "if True or any("),
    (
        "hang_endless_loop",
        "decision = _waited_for(others, waiting, still_s, limits) if still_s >= note_s else",
        "decision =",
    ),
    ("hang_read", 'return "idle" if cpu < IDLE else "computing"', 'return "computing"'),
    ("hang_sleep", "    if one.sleeps:", "    if False:"),
    ("hang_all_idle", "(decision := _all_idle(part, history))", "(decision := None)"),
    ("native_code", "    if _is_stale(one, limits):\n        last =", "    if False:\n        last ="),
    ("hang_native_code", "if one.waits and not _is_stale(one, limits)]", "if one.waits]"),
    ("saves", "    if one.io_bytes_s >= IO_BYTES_S:", "    if False:"),
    ("downloads", "    if one.io_bytes_s >= IO_BYTES_S:", "    if False:"),
    ("long_steps", "one.cpu is None or one.cpu >= ALL_IDLE or", ""),
    ("serves", "if any(one.listens for one in part) and not history.trained:", "if False:"),
    ("evaluation_grows", "max(limits.note_s, 3 * history.longest_pause_s)", "limits.note_s"),
    ("sweep", "    if not collectives and steps >= needed", "    if False and steps >= needed"),
    ("sweep-independent", "None if history.independent else", ""),
    ("other_library", "or any(one.libraries for one in part):", ":"),
    ("metrics_only", "if not 0 < largest <= SCALARS or", "if True or"),
    ("local_sgd", "if not 0 < largest <= SCALARS or", "if"),
    ("pipeline", "if not 0 < largest <= SCALARS or", "if"),
)
"""A recorded run that a rule alone judges rightly, the text of this rule in contract/liveness.py, and without it."""


def test_without_a_rule_a_recorded_run_is_judged_wrongly() -> None:
    assert failures_of(_is_missed, RULES) == []


def _is_missed(name: str, text: str, without: str) -> None:
    source = SOURCE.read_text("utf-8")
    assert source.count(text) == 1, "this text is to be found once"
    case = next(case for case in RECORDED if case.name == name)
    with _changed(source.replace(text, without)) as (rules, watching):
        assert list(_faults(case, rules, watching)), "the rule is not missed"


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
