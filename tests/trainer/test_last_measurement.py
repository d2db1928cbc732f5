"""A measurement of an earlier start is used again where nothing has changed that decides speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contract.cost_model.measurement import Measurement, NodeSpeed, SyncCost
from trainer.config import RankInfo, TrainOptions
from trainer.engine import last_measurement
from trainer.engine.group import Group
from trainer.engine.last_measurement import AGREES, differs, load, save

CPU = torch.device("cpu")
MEASURED = Measurement(
    nodes=(
        NodeSpeed(
            node="alpha", rank=0, sample_s=0.1, step_s=0.01, upload=1e8, download=1e8, micro_batch=4, host=-1,
            inside=0.0,
        ),
    ),
    latency_s=1e-4, parameters=1000, samples_per_step=8, units_per_sample=1.0, unit="samples",
    costs=(
        SyncCost(
            sync="fp32", bytes_per_parameter=4.0, codec_s_per_parameter=0.0, collectives=2, every=1, overlap=0.5,
            pattern="ring", efficiency=1.0, proven=True, whole=False,
        ),
    ),
    links=((0,),),
)  # fmt: skip


def a_run(**options: Any) -> Any:
    place = RankInfo(run_id="red-1")
    return SimpleNamespace(
        place=place,
        group=Group(place=place, backend="none", device=CPU),
        hardware=SimpleNamespace(device=CPU, threads=2, precision="fp32"),
        workload=SimpleNamespace(identity={"width": 4}),
        options=TrainOptions(**options),
        per_step=8,
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}


@pytest.fixture
def saved(environ: dict[str, str]) -> Path:
    save(a_run(), MEASURED, environ)
    (file,) = (Path(environ["TORCHINDUCTOR_CACHE_DIR"]) / "measurements").iterdir()
    return file


@pytest.mark.usefixtures("saved")
def test_it_is_found_under_the_same_conditions_alone(environ: dict[str, str]) -> None:
    found = load(a_run(), environ)
    assert found
    assert found.measured == MEASURED
    assert load(a_run(lr=1.0, max_steps=3, run_dir="elsewhere"), environ) == found, "these change no speed"
    assert load(a_run(batch_size=3), environ) is None
    assert load(a_run(sync="diloco"), environ) is None, "it was not measured"
    other = a_run()
    other.hardware = SimpleNamespace(device=CPU, threads=1, precision="fp32")
    assert load(other, environ) is None


def test_a_rank_that_no_launch_has_started_keeps_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    run = a_run()
    run.place = replace(run.place, run_id="")
    save(run, MEASURED, environ)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", '{"measured": 3}', "[" * 100_000, "\xff", '{"exchange_s": NaN}'],
    ids=lambda text: text[:12],
)
def test_a_file_that_cannot_be_read_is_none(saved: Path, environ: dict[str, str], text: str) -> None:
    saved.write_text(text, "latin-1")
    assert load(a_run(), environ) is None


@pytest.mark.parametrize(
    ("change", "by"), [("exchange_s", 0.0), ("exchange_s", -1.0), ("values", 1 << 40), ("values", 0)]
)
def test_figures_without_bounds_are_none(saved: Path, environ: dict[str, str], change: str, by: float) -> None:
    found = load(a_run(), environ)
    assert found
    text = saved.read_text().replace(f'"{change}": {getattr(found, change)}', f'"{change}": {by}')
    assert text != saved.read_text()
    saved.write_text(text)
    assert load(a_run(), environ) is None


def test_what_differs_by_more_than_some_percent_is_named(
    saved: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved.is_file()
    run = a_run()
    found = load(run, environ)
    assert found
    monkeypatch.setattr(last_measurement, "exchange_s", lambda *_: found.exchange_s * (1 + AGREES - 0.01))
    assert differs(found, run, lambda _: 0.1 * (1 - AGREES + 0.01)) == ""
    assert differs(found, run, lambda _: 0.2) == "a micro-batch on alpha takes 2.00 times as long"
    monkeypatch.setattr(last_measurement, "exchange_s", lambda *_: found.exchange_s * 0.5)
    assert differs(found, run, lambda _: 0.1) == "an exchange takes 0.50 times as long"


def test_the_second_start_of_a_run_measures_nothing_that_still_holds(
    forked: Any, train_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def start(run: str, agrees: float) -> str:
        words = [*train_command(tmp_path / run), "--sync", "auto", "--shares", "auto", "--max-steps", "2"]
        ran = forked(2, str(agrees), *words, module="tests.trainer.last_measurement_ranks").result()
        assert ran.code == 0, ran.err
        assert ran.events("measured")
        assert ran.events("forecast")
        return str(ran.out)

    assert "planned by" not in start("first", 1e9)
    assert "planned by the measurement of 20" in start("second", 1e9)
    assert "measured again: a micro-batch on " in start("third", -1.0)


def test_a_run_that_is_shorter_than_a_measurement_is_not_measured(
    forked: Any, train_command: Any, tmp_path: Path
) -> None:
    words = ("--sync", "auto", "--shares", "auto", "--max-steps", "2")
    ran = forked(2, *train_command(tmp_path / "run"), *words).result()
    assert ran.code == 0, ran.err
    assert "not measured, as 2 steps take about" in ran.out
    assert not ran.events("measured")
    assert sorted(ran.losses()) == [1, 2]
