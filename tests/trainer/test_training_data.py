"""Texts to tokens, and the order in which they are seen."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from trainer.cli import main
from trainer.data import prepare_tokens, shards, spanish, texts, trace_shards
from trainer.data.debian import Apt
from trainer.data.manifests import PreparedTokens
from trainer.data.order import Shuffled, share
from trainer.data.texts import Document, HubTexts, texts_of
from trainer.data.tokenizer import train_bpe
from trainer.errors import ConfigurationError, OptionError


def document(text: str, name: str = "uno") -> Document:
    return Document(name=name, text=text)


@given(st.integers(1, 50), st.integers(0, 2**32), st.integers(0, 200), st.integers(1, 120))
def test_the_stream_is_one_permutation_after_another(samples: int, seed: int, position: int, count: int) -> None:
    whole = Shuffled(samples, seed).take(0, position + count)
    assert np.array_equal(Shuffled(samples, seed).take(position, count), whole[position:])
    for start in range(0, len(whole) - samples + 1, samples):
        assert sorted(whole[start : start + samples]) == list(range(samples))


def test_epochs_and_seeds_differ() -> None:
    stream = Shuffled(100, 1)
    first, second = stream.take(0, 100), stream.take(100, 100)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, Shuffled(100, 2).take(0, 100))


@given(st.integers(1, 9), st.integers(0, 60))
def test_shares_are_contiguous_and_even(world_size: int, count: int) -> None:
    indices = np.arange(count)
    shares = [share(indices, rank, world_size) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(shares), indices)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.text(min_size=1))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    bpe = train_bpe(["la palabra y la luz"], 300)
    assert bpe.decode(bpe.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_prepare_is_idempotent_and_repairs(tmp_path: Path) -> None:
    texts = [document("la palabra\n" * 400), document("otra cosa\n" * 300, "dos")]
    first, new = prepare_tokens.prepare(texts, tmp_path, 280)
    assert new
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again, new = prepare_tokens.prepare(texts, tmp_path, 280)
    assert not new
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    shard = next(tmp_path.glob("train-*.bin"))
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert prepare_tokens.prepare(texts, tmp_path, 280)[1]
    assert shard.read_bytes() == content
    _, new = prepare_tokens.prepare(texts[:1], tmp_path, 280)
    assert new
    assert len(list(tmp_path.iterdir())) == 4  # nothing of the earlier text is left


def test_the_manifest_counts_what_is_there(data_dir: Path) -> None:
    data = PreparedTokens.open(data_dir)
    assert data.is_sound()
    for split in data.manifest["splits"].values():
        assert split["tokens"] == sum(shard["tokens"] for shard in split["shards"])
        assert sum((data_dir / s["file"]).stat().st_size for s in split["shards"]) == 2 * split["tokens"]
    assert data.manifest["splits"]["validation"]["tokens"] > 0
    assert 1 < data.manifest["bytes_per_token"] < 8


def test_windows_overlap_by_the_token_to_predict(data_dir: Path) -> None:
    data = PreparedTokens.open(data_dir)
    windows = shards.Windows(data, "train", 16)
    both = windows.take(np.array([0, 1]))
    assert both.shape == (2, 17)
    assert both[0, -1] == both[1, 0]
    last = windows.take(np.array([len(windows) - 1]))
    assert last.max() < data.vocab_size
    with pytest.raises(ConfigurationError, match="--seq-len"):
        shards.Windows(data, "validation", 1 << 20)


def test_windows_do_not_reach_over_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_tokens, "SHARD_TOKENS", 100)
    data, _ = prepare_tokens.prepare([document("la palabra y la luz\n" * 200)], tmp_path, 270)
    entries = data.manifest["splits"]["train"]["shards"]
    windows = shards.Windows(data, "train", 16)
    assert len(entries) > 2
    assert len(windows) == sum((entry["tokens"] - 1) // 16 for entry in entries)
    assert windows.take(np.arange(len(windows))).shape == (len(windows), 17)


def test_damaged_data_is_refused(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no prepared data"):
        PreparedTokens.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="prepare again"):
        PreparedTokens.open(tmp_path)
    (tmp_path / "manifest.json").write_text((data_dir / "manifest.json").read_text())
    with pytest.raises(ConfigurationError, match="expected"):
        PreparedTokens.open(tmp_path)
    with pytest.raises(OptionError, match="--vocab-size 100"):
        prepare_tokens.prepare([document("a")], tmp_path, 100)


def test_texts_are_read_by_name_and_all_bad_ones_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "dos.txt").write_text("\ufeffseñal", "utf-8")
    (tmp_path / "a.md").write_text("uno", "utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert [d.text for d in texts_of(tmp_path)] == ["uno", "señal"]
    assert [d.text for d in texts_of(tmp_path / "a.md")] == ["uno"]
    (tmp_path / "latin1.txt").write_bytes("hola\nseñal".encode("latin-1"))
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(ConfigurationError) as caught:
        list(texts_of(tmp_path))
    assert "latin1.txt: not UTF-8: byte 0xf1 at line 2" in str(caught.value)
    assert "image.png: not a text: NUL byte at line 1" in str(caught.value)
    with pytest.raises(ConfigurationError, match="no such file"):
        texts_of(tmp_path / "nothing")


LINES = [{"body": "la palabra", "n": 1}, {"body": "y la luz ñ", "n": 2}, {"body": None}]


def json_lines(records: Sequence[object] = LINES) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", json_lines()),
        ("a.NDJSON", b"\n" + json_lines()),
        ("a.jsonl.gz", gzip.compress(json_lines()[:40]) + gzip.compress(json_lines()[40:])),
        ("a.jsonl.zst", zstandard.compress(json_lines()[:40]) + zstandard.compress(json_lines()[40:])),
    ],
)
def test_records_are_documents(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    source = texts_of(tmp_path / name, "body")
    for _ in range(2):  # it can be read again
        assert [document.text for document in source] == ["la palabra", "y la luz ñ"]
        assert source.done == (len(content), len(content))


def test_a_column_of_a_table_is_documents(tmp_path: Path) -> None:
    rows = [f"texto {number}" for number in range(600)]
    parquet.write_table(pyarrow.table({"body": [*rows, None], "n": range(601)}), tmp_path / "a.parquet")
    assert [document.text for document in texts_of(tmp_path / "a.parquet", "body")] == rows


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"body": "x"}\n{"body": \n', "line 2 is not JSON"),
        (
            "a.jsonl",
            b'{"body": "x"}\n{"title": "y", "n": 1}\n',
            "line 2 has no 'body'; --text-key names one of: title, n",
        ),
        ("a.jsonl", b"[1, 2]", "line 1 has no 'body'; --text-key names one of: list"),
        ("a.jsonl", b'{"body": 7}', "line 1: 'body' is not a text but int"),
        ("a.txt.gz", gzip.compress(b"la palabra " * 5000)[:-9], "damaged: Compressed file ended"),
        ("a.txt.gz", b"not compressed", "damaged: Not a gzipped file"),
        ("a.txt.zst", b"not compressed", "damaged: "),
        ("a.txt.zst", zstandard.compress(b"la palabra\xff"), "not UTF-8: byte 0xff at line 1 (byte 10)"),
        ("a.parquet", b"PAR1 and rubbish", "damaged: "),
    ],
)
def test_records_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.txt").write_text("sound")
    found = []
    everything = iter(texts_of(tmp_path, "body"))
    with pytest.raises(ConfigurationError) as caught:  # noqa: PT012  # what came before the error counts
        while True:
            found.append(next(everything).text)
    assert f"{name}: {expected}" in str(caught.value)
    assert found[-1] == "sound", "the files after it are read, so that all bad ones are named at once"


def test_a_table_without_the_column_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"title": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match="no column 'text' in it; --text-key names one of: title, n"):
        list(texts_of(tmp_path / "a.parquet"))


def test_a_data_set_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "datasets.py").write_text(
        "def load_dataset(path, name, split, streaming):\n"
        "    assert (split, streaming) == ('train', True)\n"
        "    if path != 'mine/news':\n"
        "        raise ConnectionError(f'no {path}')\n"
        "    return iter([{'text': name or 'none'}, {'text': 'y la luz'}])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [document.text for document in HubTexts(name="mine/news:es")] == ["es", "y la luz"]
    with pytest.raises(ConfigurationError, match="hf:other: ConnectionError: no other"):
        list(HubTexts(name="other"))


def test_a_long_text_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "BLOCK", 10)
    whole = "señal\n" * 9 + "ñ" * 40 + "\nfin"
    (tmp_path / "a.txt").write_text(whole, "utf-8")
    parts = [document.text for document in texts_of(tmp_path / "a.txt")]
    assert "".join(parts) == whole
    assert len(parts) > 8
    assert all(len(part.encode()) <= 20 for part in parts)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("die_at", [1, 3, 6])
def test_an_interrupted_preparation_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die_at: int) -> None:
    """Data written after the last saved state is dropped; the result is that of an undisturbed one."""
    monkeypatch.setattr(prepare_tokens, "SHARD_TOKENS", 900)
    monkeypatch.setattr(prepare_tokens, "BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(prepare_tokens, "SAVE_EVERY_S", -1.0)
    (tmp_path / "a.txt").write_text("".join(f"la palabra {number} y la luz\n" for number in range(400)))
    source = texts_of(tmp_path / "a.txt")
    prepare_tokens.prepare(source, tmp_path / "whole", 270)

    saved = []

    def dying(progress: Any) -> None:
        if len(saved) == die_at:
            raise KeyboardInterrupt
        saved.append(progress.pieces)
        save(progress)

    save = prepare_tokens._Progress.save
    monkeypatch.setattr(prepare_tokens._Progress, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        prepare_tokens.prepare(source, tmp_path / "cut", 270)
    monkeypatch.setattr(prepare_tokens._Progress, "save", save)
    monkeypatch.setattr(prepare_tokens, "_surveyed", None)  # not called again
    skipped = []
    pieces = prepare_tokens._Source.pieces
    monkeypatch.setattr(prepare_tokens._Source, "pieces", lambda self, skip: skipped.append(skip) or pieces(self, skip))
    data, new = prepare_tokens.prepare(source, tmp_path / "cut", 270)
    assert new
    assert skipped == [saved[-1]]
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")
    assert len(data.manifest["splits"]["train"]["shards"]) > 3


def test_an_interruption_of_other_texts_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("la palabra y la luz\n" * 300)
    prepare_tokens.prepare(texts_of(tmp_path / "a.txt"), tmp_path / "whole", 270)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / prepare_tokens.PROGRESS).write_text(json.dumps({"key": ["other", []], "pieces": 3}))
    (tmp_path / "cut" / ".train-00000.tokens").write_bytes(b"left")
    prepare_tokens.prepare(texts_of(tmp_path / "a.txt"), tmp_path / "cut", 270)
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def test_the_sample_for_the_tokenizer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_tokens, "SAMPLE_CHARACTERS", 1000)
    sample, everything = prepare_tokens._Sample(), [f"{number:010d}" for number in range(2000)]
    for piece in everything:
        sample.add(hashlib.sha256(piece.encode()).digest(), piece)
    saved = [piece for _, piece in sample.pieces]
    assert 500 <= sum(map(len, saved)) <= 2000
    assert saved == sorted(saved), "in the order of the text"
    assert int(saved[0]) < 200
    assert int(saved[-1]) > 1800


def test_the_validation_share_of_a_larger_text() -> None:
    many = [document("la palabra y la luz " * 8 + str(number)) for number in range(3000)]
    total = sum(len(each.text) for each in many)
    survey, _ = prepare_tokens._surveyed(many, "", prepare_tokens._Clock(many, print))
    chosen = [
        piece
        for piece in prepare_tokens._Source(many, survey, survey.validation_rest).pieces(0)
        if piece.split == "validation"
    ]
    assert 0.02 <= sum(len(piece.text) for piece in chosen) / total < 0.021


def test_prepare_command(call, tmp_path: Path) -> None:
    (tmp_path / "texto.txt").write_text("la palabra y la luz\n" * 300)
    where = ("--data-dir", str(tmp_path / "Data"), "--vocab-size", "270")
    ask = ("gpt2", "prepare", "--text", str(tmp_path / "texto.txt"), *where)
    assert "prepared:" in call(*ask).out
    assert "already there" in call(*ask).out
    missing = call("gpt2", "prepare", "--text", str(tmp_path / "nada"), *where)
    assert (missing.code, "no such file" in missing.err) == (3, True)


def test_sword_blocks_are_decoded(tmp_path: Path) -> None:
    book = '<title>San Mateo</title><div/><chapter n="1"/><w lemma="x">LIBRO</w> de la <i>generación</i>¶'
    block = zlib.compress(book.encode())
    (tmp_path / "nt.bzz").write_bytes(b"xxxx" + block)
    (tmp_path / "nt.bzs").write_bytes(struct.pack("<III", 4, len(block), len(book)))
    assert [d.text for d in spanish.scripture(tmp_path)] == ["San Mateo\n\nLIBRO de la generación"]


def test_manual_pages_lose_their_markup() -> None:
    page = (
        '.\\" nota\n.TH LS 1\n.SH NOMBRE\nls \\- lista\n.PP\n'
        "ver \\fB\\-a\\fP, \\fI\\,OPCI\\(aqN\\/\\fP\n.TP \n.B ls -l\n"
    )
    assert spanish.plain_roff(page) == "NOMBRE\nls - lista\n\nver -a, OPCI'N\n\nls -l"


FAKE_APT = """
import pathlib, sys
words = sys.argv[1:]
if "update" in words:
    sys.exit(0)
package = words[-1]
if package != "fortunes-es":
    sys.exit(f"E: Unable to locate package {package}")
pathlib.Path(package + "_1_all.deb").write_bytes(pathlib.Path("@DEB@").read_bytes())
"""


def test_a_missing_package_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    sayings = tree / "usr/share/games/fortunes/es"
    (sayings / "off").mkdir(parents=True)
    (sayings / "refranes.fortunes").write_text("A buen hambre no hay pan duro.\n%\nAgua pasada.\n")
    (sayings / "off" / "insultos.fortunes").write_text("nada de esto\n")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: fortunes-es\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    )
    deb = tmp_path / "fortunes.deb"
    subprocess.run(("dpkg-deb", "--build", tree, deb), check=True, capture_output=True)
    script = tmp_path / "apt.py"
    script.write_text(FAKE_APT.replace("@DEB@", str(deb)))
    messages: list[str] = []
    apt = Apt(home=tmp_path / "apt", command=(sys.executable, str(script)))
    documents = spanish.fetch(messages.append, apt)
    assert [d.text for d in documents] == ["A buen hambre no hay pan duro.\n\nAgua pasada."]
    assert sum("Unable to locate package" in line for line in messages) == 3
    assert messages[3:] == ["  M characters: fortunes-es 0.0"]


def test_without_any_package_the_way_out_is_reported(tmp_path: Path) -> None:
    apt = Apt(home=tmp_path / "apt", command=(str(tmp_path / "no-apt-here"),))
    with pytest.raises(ConfigurationError, match="--text PATH"):
        spanish.fetch(lambda line: None, apt)


def test_manual_pages_that_only_point_elsewhere_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "usr/share/man/es/man1"
    folder.mkdir(parents=True)
    (folder / "a.1.gz").write_bytes(gzip.compress(b".so man1/ls.1\n"))
    (folder / "b.1.gz").write_bytes(gzip.compress(b"palabras " * 50))
    assert [d.name for d in spanish.manual_pages(tmp_path)] == ["b.1"]


def test_the_input_decides_the_fingerprint(tmp_path: Path) -> None:
    texts = [document("la palabra\n" * 500)]
    made = [prepare_tokens.prepare(texts, tmp_path / name, 270)[0].manifest for name in ("a", "b")]
    assert json.dumps(made[0]) == json.dumps(made[1])


def test_text_of_which_no_sample_can_be_cut_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"too little text: \d tokens for"):
        prepare_tokens.prepare([document("Hola")], tmp_path / "Data", 270)
    assert not (tmp_path / "Data").exists()


def test_in_a_container_of_orch_the_line_is_one_for_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigurationError, match=f"python -m trainer gpt2 prepare --text spanish --data-dir {tmp_path}"
    ):
        PreparedTokens.open(tmp_path)
    monkeypatch.setenv("ORCH_RUN_ID", "0102-1504-ab12")
    with pytest.raises(ConfigurationError, match=r"make it with: orch prepare -- gpt2 --text spanish$"):
        PreparedTokens.open(tmp_path)


def test_a_full_disk_is_named_while_data_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> dict[str, object]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare_tokens, "store", full)
    (tmp_path / "a.txt").write_text("la palabra\n" * 500)
    words = ["gpt2", "prepare", "--text", str(tmp_path / "a.txt"), "--vocab-size", "270", "--data-dir", str(tmp_path)]
    assert main(words) == 3
    assert capsys.readouterr().err == f"error: {tmp_path}: no space left on its disk\n"


def test_data_of_another_workload_is_distinguished(data_dir: Path, tmp_path: Path) -> None:
    """One folder serves one workload: the error of the second names what the folder holds, and how to make its own."""
    with pytest.raises(ConfigurationError, match=r"tokens, format 1, where traces, format 1, .*traces-lstm prepare"):
        trace_shards.PreparedTraces.open(data_dir)
    (tmp_path / "manifest.json").write_text('{"kind": "tokens", "format": 7}', "utf-8")
    with pytest.raises(ConfigurationError, match=r"\(tokens, format 7, where tokens, format 1, is read\)"):
        PreparedTokens.open(tmp_path)


def test_only_files_of_ours_are_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "my-photos-2026.jpg").touch()
    (tmp_path / "train-0123456789ab.pixels").touch()  # what another workload had prepared here
    data, _ = prepare_tokens.prepare([document("la palabra y la luz\n" * 200)], tmp_path, 270)
    left = {path.name for path in tmp_path.iterdir()} - {str(entry["file"]) for entry in data.files}
    assert left == {"manifest.json", "notes.txt", "my-photos-2026.jpg"}


def test_a_flipped_bit_is_repaired_by_preparing_again(tmp_path: Path) -> None:
    text = [document("la palabra y la luz\n" * 200)]
    data, _ = prepare_tokens.prepare(text, tmp_path, 270)
    shard = tmp_path / data.manifest["splits"]["train"]["shards"][0]["file"]
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert PreparedTokens.open(tmp_path)  # in full length
    assert prepare_tokens.prepare(text, tmp_path, 270)[1]
    assert shard.read_bytes() == content
