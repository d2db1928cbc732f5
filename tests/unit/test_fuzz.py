"""A short turn of `python -m benchmarks.fuzz`, and that it finds what it is there to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fuzz import find_readers, run
from benchmarks.fuzz.find_readers import NOT_FUZZED, functions_run, reading_functions
from benchmarks.fuzz.reader import Reader
from benchmarks.fuzz.readers import readers
from benchmarks.fuzz.run import fuzz


def test_readers_understand_their_texts() -> None:
    for name, reader in readers().items():
        for text in reader.texts:
            if name not in ("greeting", "torch"):  # whose texts prove nothing, and come from another program
                reader.read(text)


def test_every_reader_is_fuzzed_or_has_a_reason() -> None:
    """A function that turns text into data is run by a reader of the fuzzer, or is in `NOT_FUZZED`."""
    found, fuzzed = reading_functions(), functions_run(readers())
    exempt = {place for places in NOT_FUZZED.values() for place in places}
    assert found - fuzzed - exempt == set(), "give benchmarks.fuzz a reader, or NOT_FUZZED a reason"
    assert exempt - found == set(), "NOT_FUZZED has functions that are gone, or decode nothing"
    assert exempt & fuzzed == set(), "NOT_FUZZED has functions that a reader runs"


def test_a_reader_without_the_fuzzer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_readers, "ROOT", tmp_path)
    (tmp_path / "orchestrator").mkdir()
    (tmp_path / "orchestrator" / "x.py").write_text(
        "class A:\n    def asked(self):\n        def each(line):\n            return json.loads(line)\n"
        "def parse_it(text: str): ...\ndef other(text: str): ...\ndef _of(a):\n    struct.unpack('<I', a)\n"
    )
    assert reading_functions() == {f"orchestrator/x.py:{name}" for name in ("A.asked.each", "parse_it", "_of")}


def test_readers_of_text_from_elsewhere_raise_only_what_they_declare() -> None:
    found = fuzz(readers(), seconds=2.0, seed=20260102)
    assert found.faults == {}
    assert min(found.texts.values()) > 10


def test_a_reader_with_a_fault_is_found() -> None:
    broken = {
        "digits": Reader(read=int, texts=["12"]),
        "keys": Reader(read=lambda text: json.loads(text)["a"] + 1, texts=['{"a": 1}'], declared=(ValueError,)),
    }
    found = fuzz(broken, seconds=0.3, seed=1)
    assert {fault.split(":")[0] for fault in found.faults} == {"digits", "keys"}


def test_a_reader_that_takes_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_text: str) -> None:
        while True:
            pass

    monkeypatch.setattr(run, "SLOW_S", 0.1)
    found = fuzz({"endless": Reader(read=endless, texts=["x"])}, seconds=0.15, seed=1)
    assert [fault.partition(" in ")[0] for fault in found.faults] == ["endless: TooSlow"]
