"""Input of the container that prepares data, and its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.prepare import must_be_alone, with_sources
from orchestrator.plan.prepare import NAME, SourcePath, prepare_container, user_paths
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import ConflictError, UsageError
from tests import lan
from tests.conftest import NO_TORCH
from tests.unit.conftest import Orch


def test_files_and_folders_among_the_words_are_brought_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "a b.csv").touch()
    monkeypatch.chdir(tmp_path)
    words = with_sources(["--images", "photos", "--csv=a b.csv", "--image-size", "64", "--grey", "demo"])
    assert words == [
        "--images", SourcePath(path=str(tmp_path / "photos"), typed="photos"),
        SourcePath(path=str(tmp_path / "a b.csv"), option="--csv=", typed="a b.csv"),
        "--image-size", "64", "--grey", "demo",
    ]  # fmt: skip


def test_the_place_of_the_data_is_printed_elsewhere() -> None:
    for words in (["--data-dir", "x"], ["--data-dir=x"]):
        with pytest.raises(UsageError, match="orch prepare --data DIR"):
            with_sources(words)


def test_sources_are_read_only_under_their_own_names() -> None:
    photos = "/home/ana/photos"
    spec = prepare_container(
        image="sha256:1",
        workload="vision",
        words=[
            "--images",
            SourcePath(path="/home/ana/photos"),
            SourcePath(path="/home/ana/photos", option="--more="),
            "--grey",
        ],
        data_dir="/home/ana/Data",
        user="1000:1000",
        environment={},
    )
    inside = "/workspace/sources"
    assert spec.command == (
        "python", "-m", "trainer", "vision", "prepare", "--images", f"{inside}/1/photos", f"--more={inside}/2/photos",
        "--grey", "--data-dir", "/workspace/Data",
    )  # fmt: skip
    assert spec.mounts == (
        Mount(source="/home/ana/Data", target="/workspace/Data"),
        Mount(source=photos, target=f"{inside}/1/photos", read_only=True),
        Mount(source=photos, target=f"{inside}/2/photos", read_only=True),
    )


def test_messages_of_the_container_have_the_users_paths() -> None:
    words = ["--csv", SourcePath(path="/home/ana/my texts/a.csv", typed="my texts/a.csv")]
    spec = prepare_container(
        image="", workload="text", words=words, data_dir="/home/ana/mine/Data", user="1:1", environment={}
    )
    message = "/workspace/sources/1/a.csv:3: nothing in comentario\n/workspace/Data: prepared"
    assert user_paths(message, spec, Path("mine/Data"), words) == (
        "my texts/a.csv:3: nothing in comentario\nmine/Data: prepared"
    )


# ── The command, with the trainer as a process ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def texts(orch: Orch) -> Path:
    """A text that is long enough, in the folder in which `orch` is called."""
    pytest.importorskip("torch", reason=NO_TORCH)
    text = Path("cuentos.txt")
    text.write_text("\n".join(f"En un lugar {n} de la Mancha, de cuyo nombre no quiero acordarme." for n in range(60)))
    return text


def test_the_next_line_has_the_numbers_and_paths_of_the_user(orch: Orch, texts: Path) -> None:
    ran = orch("prepare", "--engine", "process", "--text", str(texts), "--vocab-size", "9000", "--data", "mis datos")
    assert ran.code == 0, ran.err
    assert "  → orch launch --nodes 3 --data 'mis datos'\n" in ran.err
    assert "mis datos: prepared: " in ran.err
    assert "note: little text: train with --seq-len" in ran.err
    assert "entries, fewer than --vocab-size 9000" in ran.err


def test_an_error_is_printed_once_and_leaves_no_folder(orch: Orch, texts: Path) -> None:
    texts.write_text("Hola")
    ran = orch("prepare", "--engine", "process", "--text", str(texts), "--vocab-size", "300")
    assert ran.code == 3
    assert ran.err.count("too little text") == ran.err.count("error: ") == 1
    assert not Path("Data").exists()


def test_without_containers_on_the_nodes_none_is_used_here(orch: Orch, texts: Path) -> None:
    process = "beta: {address: 127.0.0.12, connection: local, engine: process}"
    for name, nodes in (("processes", process), ("mixed", f"alpha: {{address: 127.0.0.11}}, {process}")):
        Path(f"{name}.yaml").write_text(f"project: no-such-image\nnodes: {{{nodes}}}\n")
    ran = orch("prepare", "-i", "processes.yaml", "--text", str(texts), "--vocab-size", "300")
    assert ran.code == 0, ran.err
    ran = orch("prepare", "-i", "mixed.yaml", "--text", str(texts), "--vocab-size", "300")
    assert (ran.code, "does not have the image orch/no-such-image:cpu" in ran.err) == (4, True)


def test_data_of_another_workload_is_replaced_only_where_somebody_agrees(orch: Orch, texts: Path) -> None:
    Path("Data").mkdir()
    held = Path("Data/manifest.json")
    held.write_text('{"kind": "images", "format": 1}')
    words = ("prepare", "--engine", "process", "--text", str(texts), "--vocab-size", "300")
    refused = orch(*words, says=None)
    assert refused.code == 2
    assert "Data holds images, which would be removed\n  → --data OTHER" in refused.err
    declined = orch(*words, says=False)
    assert (declined.code, declined.asked) == (130, ("Replace what Data holds?",))
    assert "images" in held.read_text()
    assert orch(*words, "--yes", says=None).code == 0
    assert "tokens" in held.read_text()
    assert orch(*words, says=None).code == 0  # of the same workload, and kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--", "gtp2"), "no workload 'gtp2' (did you mean gpt2?)"),
        (("--", "vision", "--image", "photos"), "(did you mean --images?)"),
        (("vision",), "the following arguments are required: --images"),
    ],
)
def test_words_that_cannot_be_prepared_are_refused_here(orch: Orch, words: tuple[str, ...], message: str) -> None:
    ran = orch("prepare", *words)  # with no engine that could be asked
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not Path("Data").exists()


@pytest.mark.parametrize("ends_with", [None, 1])
def test_a_preparation_that_runs_is_respected_and_one_that_was_cut_off_is_removed(ends_with: int | None) -> None:
    engine = lan.Actor("controller", held={lan.IMAGE.id: lan.IMAGE}, ends_with=ends_with)
    engine.start(engine.create(ContainerSpec(name=NAME, image=lan.IMAGE.id, command=(), environment={}, labels={})))
    if ends_with:
        must_be_alone(engine, NAME)
        assert engine.container(NAME) is None
        must_be_alone(engine, NAME)
        return
    with pytest.raises(ConflictError) as caught:
        must_be_alone(engine, NAME)
    assert (caught.value.exit_code, caught.value.message) == (6, "another `orch prepare` runs on this computer")
    assert f"docker rm -f {NAME}" in caught.value.hint
