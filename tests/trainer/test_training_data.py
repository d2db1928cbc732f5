"""Texts to tokens, and the order in which they are seen."""

from __future__ import annotations

import errno
import gzip
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.cli import main
from trainer.data import shards, spanish, trace_shards
from trainer.data.debian import Apt
from trainer.data.manifests import PreparedTokens
from trainer.data.order import Shuffled, share
from trainer.data.texts import Document, read_texts
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


def test_prepare_is_idempotent_and_mends(tmp_path: Path) -> None:
    texts = [document("la palabra\n" * 400), document("otra cosa\n" * 300, "dos")]
    first, new = shards.prepare(texts, tmp_path, 280)
    assert new
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again, new = shards.prepare(texts, tmp_path, 280)
    assert not new
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    shard = next(tmp_path.glob("train-*.bin"))
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert shards.prepare(texts, tmp_path, 280)[1]
    assert shard.read_bytes() == content
    _, new = shards.prepare(texts[:1], tmp_path, 280)
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
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100)
    data, _ = shards.prepare([document("la palabra y la luz\n" * 200)], tmp_path, 270)
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
        shards.prepare([document("a")], tmp_path, 100)


def test_texts_are_read_by_name_and_all_bad_ones_named(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "dos.txt").write_text("\ufeffseñal", "utf-8")
    (tmp_path / "a.md").write_text("uno", "utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    assert [d.text for d in read_texts(tmp_path)] == ["uno", "señal"]
    assert [d.text for d in read_texts(tmp_path / "a.md")] == ["uno"]
    (tmp_path / "latin1.txt").write_bytes("hola\nseñal".encode("latin-1"))
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(ConfigurationError) as caught:
        read_texts(tmp_path)
    assert "latin1.txt: not UTF-8: byte 0xf1 at line 2" in str(caught.value)
    assert "image.png: not a text: NUL byte at line 1" in str(caught.value)
    with pytest.raises(ConfigurationError, match="no such file"):
        read_texts(tmp_path / "nothing")


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
    said: list[str] = []
    apt = Apt(home=tmp_path / "apt", command=(sys.executable, str(script)))
    documents = spanish.fetch(said.append, apt)
    assert [d.text for d in documents] == ["A buen hambre no hay pan duro.\n\nAgua pasada."]
    assert sum("Unable to locate package" in line for line in said) == 3


def test_without_any_package_the_way_out_is_told(tmp_path: Path) -> None:
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
    made = [shards.prepare(texts, tmp_path / name, 270)[0].manifest for name in ("a", "b")]
    assert json.dumps(made[0]) == json.dumps(made[1])


def test_text_of_which_no_sample_can_be_cut_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"too little text: \d tokens for"):
        shards.prepare([document("Hola")], tmp_path / "Data", 270)
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

    monkeypatch.setattr(shards, "store", full)
    (tmp_path / "a.txt").write_text("la palabra\n" * 500)
    words = ["gpt2", "prepare", "--text", str(tmp_path / "a.txt"), "--vocab-size", "270", "--data-dir", str(tmp_path)]
    assert main(words) == 3
    assert capsys.readouterr().err == f"error: {tmp_path}: no space left on its disk\n"


def test_data_of_another_workload_is_told_apart(data_dir: Path, tmp_path: Path) -> None:
    """One folder serves one workload: whichever comes second is told what lies there, and how to make its own."""
    with pytest.raises(ConfigurationError, match=r"tokens, format 1, where traces, format 1, .*traces-lstm prepare"):
        trace_shards.PreparedTraces.open(data_dir)
    (tmp_path / "manifest.json").write_text('{"kind": "tokens", "format": 7}', "utf-8")
    with pytest.raises(ConfigurationError, match=r"\(tokens, format 7, where tokens, format 1, is read\)"):
        PreparedTokens.open(tmp_path)


def test_only_files_of_ours_are_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "my-photos-2026.jpg").touch()
    (tmp_path / "train-0123456789ab.pixels").touch()  # what another workload had prepared here
    data, _ = shards.prepare([document("la palabra y la luz\n" * 200)], tmp_path, 270)
    left = {path.name for path in tmp_path.iterdir()} - {str(entry["file"]) for entry in data.files}
    assert left == {"manifest.json", "notes.txt", "my-photos-2026.jpg"}


def test_a_flipped_bit_is_mended_by_preparing_again(tmp_path: Path) -> None:
    text = [document("la palabra y la luz\n" * 200)]
    data, _ = shards.prepare(text, tmp_path, 270)
    shard = tmp_path / data.manifest["splits"]["train"]["shards"][0]["file"]
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert PreparedTokens.open(tmp_path)  # in full length
    assert shards.prepare(text, tmp_path, 270)[1]
    assert shard.read_bytes() == content
