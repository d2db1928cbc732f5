"""Labelled texts: what is read, refused, held back and kept."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from trainer.data import failure_texts, labelled_text, spanish, text_prepared
from trainer.data.labelled_text import LabelledText
from trainer.data.manifests import PreparedText
from trainer.data.order import Bucketed
from trainer.data.texts import Document
from trainer.data.tokenizer import train_wordpiece
from trainer.errors import ConfigurationError
from trainer.models.frozen import FrozenRows
from trainer.models.pretrained import Pretrained, random_shape
from trainer.workloads import text_prepare

HEADS = ("modo", "causa")


def row(text: str, *labels: str) -> LabelledText:
    return LabelledText(text=text, labels=labels or ("x", "y"), line=1)


def test_rows_are_read_with_semicolons_a_mark_at_the_start_and_texts_of_many_lines(tmp_path: Path) -> None:
    file = tmp_path / "fallas.csv"
    file.write_bytes('\ufeffmodo;descripcion;causa\nfuga;"Gotea;\nmucho";desgaste\n\ngolpe;Suena;uso\n'.encode())
    first, second = labelled_text.read_labelled(file, "descripcion", HEADS)
    assert (first.text, first.labels, first.line) == ("Gotea;\nmucho", ("fuga", "desgaste"), 2)
    assert (second.labels, second.line) == (("golpe", "uso"), 5)


def test_every_problem_of_a_file_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("descripcion,modo,cuasa\ngotea,fuga,uso\n,fuga,uso\nsuena,golpe\n")
    with pytest.raises(ConfigurationError) as error:
        labelled_text.read_labelled(file, "descripcion", HEADS)
    assert str(error.value).splitlines() == [
        f"{file}:1: no column 'causa' (did you mean 'cuasa'?)",
        f"{file}:4: 2 cells, expected 3 (',' between them)",
        f"{file}:3: nothing in descripcion",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"descripcion,modo,causa\n\xf1,a,b\n", "f.csv:2: not UTF-8 (byte 0xf1)"),
        (b"descripcion,modo,causa\n", "no rows"),
        (b'descripcion,modo,causa\nx,a,b\n"x"y,a,b\n', "f.csv:3: ',' expected after"),
        (b"descripcion,modo,causa,causa\nx,a,b,c\n", "f.csv:1: two columns 'causa'"),
    ],
)
def test_what_is_no_csv_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "f.csv").write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        labelled_text.read_labelled(tmp_path / "f.csv", "descripcion", HEADS)
    assert message in str(error.value)


def test_each_class_is_held_back_in_part_and_equal_texts_stay_together() -> None:
    rows = [row(f"texto {n % 90}", "m", "rara" if n % 90 < 10 else "normal") for n in range(180)]
    train, validation = labelled_text.split(rows, 0.2, head=1)
    assert not {r.text for r in train} & {r.text for r in validation}
    assert sorted(r.labels[1] for r in validation) == ["normal"] * 32 + ["rara"] * 4
    more = [*rows, row("nuevo", "m", "normal")]
    moved = {r.text for r in validation} ^ {r.text for r in labelled_text.split(more, 0.2, head=1)[1]}
    assert len(moved) <= 2


def test_too_few_rows_to_hold_some_back_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--validation-csv"):
        labelled_text.split([row("uno", "a"), row("dos", "b")], 0.1, head=0)


def test_made_up_failures_are_the_same_for_ever_and_vary_in_length() -> None:
    rows = failure_texts.rows(500)
    assert rows[:100] == failure_texts.rows(100)
    assert {r[2] for r in rows} == set(failure_texts.CAUSES)
    words = [len(r[0].split()) for r in rows]
    assert max(words) > 4 * min(words)


def test_passages_carry_their_source() -> None:
    documents = [
        Document(name="ot/0", text="En el principio crió Dios los cielos.\nY la tierra estaba vacía y sin orden."),
        Document(name="ls.1", text="Muestra lo que hay en una carpeta.\n\ncorto\n\nAdmite muchas opciones de orden."),
        Document(name="debian-reference.es/3", text="El sistema se inicia en varias etapas, una tras otra."),
        Document(name="refranes", text="A quien madruga, Dios le ayuda, dicen."),
    ]  # fmt: skip
    found = spanish.passages(documents, fewest=1)
    assert [classes for _, *classes in found] == [
        ["biblia", "biblia ot"], ["biblia", "biblia ot"], ["manual", "manual 1"], ["manual", "manual 1"],
        ["referencia de Debian", "referencia de Debian 3"], ["refranes", "refranes refranes"],
    ]  # fmt: skip
    assert {c for _, c, _ in spanish.passages(documents, fewest=2)} == {"biblia", "manual"}


# ── Order ─────────────────────────────────────────────────────────────────────────────────────────


def test_bucketed_order_takes_all_once_an_epoch_and_pads_little() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 1003)
    order = Bucketed(lengths, seed=3, step_sizes=[(0, 16)])
    epochs = [order.take(epoch * 1003, 1003) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(1003))
    assert epochs[0].tolist() != epochs[1].tolist()
    steps = [order.take(at, 16) for at in range(0, 2 * 1003, 16)]
    spread = [int(np.ptp(lengths[step])) for step in steps]
    # All but those that join two epochs, and in the later epochs too: groups start where steps do.
    assert np.median(spread[64:]) < 10
    assert np.median(spread) < 10
    padded = sum(int(lengths[step].max()) * 16 for step in steps)
    assert padded < 1.1 * sum(int(lengths[step].sum()) for step in steps)


def test_bucketed_order_follows_from_seed_and_position_alone() -> None:
    lengths = np.arange(100) % 7
    whole = Bucketed(lengths, seed=1, step_sizes=[(0, 8)]).take(0, 300)
    assert Bucketed(lengths, seed=1, step_sizes=[(0, 8)]).take(150, 40).tolist() == whole[150:190].tolist()
    assert Bucketed(lengths, seed=2, step_sizes=[(0, 8)]).take(0, 300).tolist() != whole.tolist()
    short = Bucketed(lengths[:5], seed=1, step_sizes=[(0, 8)]).take(0, 10)
    assert sorted(short[:5].tolist()) == sorted(short[5:].tolist()) == list(range(5))


# ── Prepared ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedText:
    rows = [LabelledText(text=r[0], labels=r[1:], line=1) for r in failure_texts.rows(60)]
    tokenizer = train_wordpiece([r.text for r in rows], 400)
    model = Pretrained(shape=random_shape("random:tiny", tokenizer.get_vocab_size()), weights={}, tokenizer=tokenizer)
    splits = {"train": rows[:40], "validation": rows[40:]}
    return text_prepare.write(tmp_path_factory.mktemp("text"), "random:tiny", model, failure_texts.HEADS, splits)


def test_rows_are_cut_with_their_last_mark_and_padded(prepared: PreparedText) -> None:
    whole, cut = (text_prepared.Rows(prepared, "train", length) for length in (512, 20))
    n = int(whole.lengths.argmax())
    tokens = whole.take(np.array([n]), int(whole.lengths[n]))[0]
    assert cut.take(np.array([n]), 22)[0].tolist() == [*tokens[:19].tolist(), tokens[-1], 0, 0]
    vocabulary = Tokenizer.from_file(str(prepared.file("tokenizer")))
    assert [vocabulary.id_to_token(t) for t in (tokens[0], tokens[-1])] == ["[CLS]", "[SEP]"]


def test_validation_lies_in_the_order_of_length(prepared: PreparedText) -> None:
    assert (np.diff(text_prepared.Rows(prepared, "validation", 512).lengths) >= 0).all()


def test_rows_reach_a_worker_as_a_file_not_as_content(prepared: PreparedText) -> None:
    rows = text_prepared.Rows(prepared, "train", 64)
    again = pickle.loads(pickle.dumps(rows))  # noqa: S301  # our own
    assert isinstance(again._tokens, np.memmap)
    assert again.take(np.arange(5), 64).tolist() == rows.take(np.arange(5), 64).tolist()


def test_an_incomplete_folder_is_refused(prepared: PreparedText, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no prepared data here; make it with"):
        PreparedText.open(tmp_path)
    for path in prepared.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: 10 if path.name.startswith("train-tokens") else None])
    with pytest.raises(ConfigurationError, match=r"train-tokens.*expected \d+ bytes, found 10"):
        PreparedText.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(ConfigurationError, match="data of another workload"):
        PreparedText.open(tmp_path)


def test_lengths_and_advice() -> None:
    lengths = np.arange(1, 201)
    assert text_prepared.length_statistics(lengths) == {
        "texts": 200,
        "p50": 101,
        "p90": 181,
        "p95": 191,
        "p99": 199,
        "max": 200,
    }
    assert text_prepared.advised_length(lengths, 512) == 224
    assert text_prepared.advised_length(lengths, 128) == 128
    assert "--max-length 128  cuts 72 texts (36.0%)" in "\n".join(text_prepared.length_report(lengths, 512))


# ── Frozen rows ───────────────────────────────────────────────────────────────────────────────────


def test_frozen_rows_are_stored_without_padding_and_found_again(tmp_path: Path) -> None:
    lengths = np.array([2, 3, 1])
    saved = FrozenRows(tmp_path, "a", lengths, 4, "<f4")
    rows = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    saved.write(np.array([1, 0]), rows)
    for seen in (saved, FrozenRows(tmp_path, "a", lengths, 4, "<f4"), pickle.loads(pickle.dumps(saved))):  # noqa: S301
        assert seen.known(np.arange(3)).tolist() == [True, True, False]
        found = seen.read(np.array([0, 1, 2]), 3)
        assert torch.equal(torch.from_numpy(found[1]), torch.from_numpy(rows[0]))
        assert found[0].tolist() == [*rows[1, :2].tolist(), [0.0] * 4]
        assert not found[2].any()
    assert saved.nbytes == 6 * 4 * 4
    assert not FrozenRows(tmp_path, "b", lengths, 4, "<f4").known(np.arange(3)).any()


def test_frozen_rows_of_before_a_power_cut_count_only_if_all_were_written(tmp_path: Path) -> None:
    lengths = np.array([2, 3])
    FrozenRows(tmp_path, "half", lengths, 4, "<f4").write(np.array([0]), np.ones((1, 2, 4), np.float32))
    FrozenRows(tmp_path, "whole", lengths, 4, "<f4").write(np.array([0, 1]), np.ones((2, 3, 4), np.float32))
    state = tmp_path / "frozen-half.json"
    assert FrozenRows(tmp_path, "half", lengths, 4, "<f4").known(np.arange(2)).tolist() == [True, False]
    state.write_text('{"boot": "another"}')
    assert not FrozenRows(tmp_path, "half", lengths, 4, "<f4").known(np.arange(2)).any()
    assert FrozenRows(tmp_path, "whole", lengths, 4, "<f4").known(np.arange(2)).all()
