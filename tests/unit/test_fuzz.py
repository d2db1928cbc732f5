"""A short turn of `python -m benchmarks.fuzz`, and that it finds what it is there to find."""

from __future__ import annotations

import json

import pytest

from benchmarks.fuzz import run
from benchmarks.fuzz.readers import Reader, readers
from benchmarks.fuzz.run import fuzz


def test_readers_understand_their_texts() -> None:
    for name, reader in readers().items():
        for text in reader.texts:
            if name not in ("greeting", "torch"):  # whose texts prove nothing, and come from another program
                reader.read(text)


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
