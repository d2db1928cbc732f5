"""`orch sample`, `predict` and `evaluate` on machines in memory whose files are real: every script is really run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import Answer
from orchestrator.plan.model_use import ModelUse
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import to_json
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.shelves import RUN, Shelves, flip, mark_best, write_checkpoint
from tests.unit.conftest import Ran

Orch = Callable[..., Ran]
DIGEST = "0123456789abcdef"


@pytest.fixture
def here(tmp_path: Path) -> Shelves:
    """alpha holds steps 40 and 80, beta 80; each has the data and an image that prints its command."""
    shelves = Shelves(tmp_path / "machines")
    for name, step in (("alpha", 40), ("alpha", 80), ("beta", 80)):
        write_checkpoint(shelves.root(name), step)
        (shelves.root(name) / "data" / DIGEST).mkdir(parents=True, exist_ok=True)
    for node in shelves.all:
        node.root = Path("/")
        node.engine.held[lan.IMAGE.id], node.engine.programs = lan.IMAGE, printing
    return shelves


def printing(spec: ContainerSpec) -> Answer:
    return 0, f"{' '.join(spec.command[4:])}\n", ""


def folder_of(spec: ContainerSpec, target: str) -> Path:
    return next(Path(mount.source) for mount in spec.mounts if mount.target == target)


def record(here: Shelves, *command: str, own_code: bool = False) -> Plan:
    plan = replace(here.plan, command=command, data=lan.data(DIGEST), own_code=own_code)
    RunRecord(RUN).save_plan(plan)
    return plan


@pytest.fixture
def orch(here: Shelves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orch:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    nodes = [f"  {spec.name}: {{address: {spec.address}, workspace: {spec.workspace}}}" for spec in here.specs]
    Path("inventory.yaml").write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))

    def run(*argv: str) -> Ran:
        with connecting_by(here.connect):
            code = main(argv)
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        for name in here.names:
            assert list(here.root(name).glob("runs/*/.*")) == [], "nothing is left on the node"
        return Ran(code, output.out, output.err)

    return run


def test_sample_calls_the_trainer_once_for_each_prompt(orch: Orch, here: Shelves) -> None:
    record(here, "gpt2", "--preset", "tiny")
    ran = orch("sample", RUN, "--prompt", "-- one", "--prompt", "two", "--tokens", "5", "--json")
    assert ran.code == 0, ran.err
    data = json_data(ran.out)
    assert (data["run_id"], data["step"], data["from"]) == (RUN, 80, "alpha")
    assert [one["prompt"] for one in data["samples"]] == ["-- one", "two"]
    assert data["samples"][0]["text"] == "gpt2 sample --checkpoint /workspace/model --prompt=-- one --tokens=5"


def test_the_container_has_no_network_and_reads_only(orch: Orch, here: Shelves) -> None:
    record(here, "gpt2")
    seen: list[ContainerSpec] = []
    here.nodes["alpha"].engine.programs = lambda spec: (seen.append(spec), printing(spec))[1]
    assert orch("sample", "--prompt", "x").code == 0
    (spec,) = seen
    assert (spec.network, spec.image, spec.gpus) == ("none", lan.IMAGE.id, False)
    assert spec.name != "orch-run"
    assert {mount.target for mount in spec.mounts if not mount.read_only} == {"/workspace/out"}
    assert folder_of(spec, "/workspace/model") == here.root("alpha") / "runs" / RUN / "checkpoints" / "step-00000080"


@pytest.mark.parametrize(
    ("words", "step", "node"),
    [(["best"], 40, "alpha"), (["step-00000040"], 40, "alpha"), (["newest", "--node", "beta"], 80, "beta")],
)
def test_the_checkpoint_and_the_node_can_be_chosen(
    orch: Orch, here: Shelves, words: list[str], step: int, node: str
) -> None:
    record(here, "gpt2")
    mark_best(here.root("alpha"), 40)
    ran = orch("sample", "--prompt", "x", "--checkpoint", *words, "--json")
    assert ran.code == 0, ran.err
    assert (json_data(ran.out)["step"], json_data(ran.out)["from"]) == (step, node)


def test_a_damaged_copy_is_not_used(orch: Orch, here: Shelves) -> None:
    record(here, "gpt2")
    for name in ("alpha", "beta"):
        flip(here.root(name) / "runs" / RUN / "checkpoints" / "step-00000080" / "state.pt")
    assert json_data(orch("sample", "--prompt", "x", "--json").out)["step"] == 40
    ran = orch("sample", "--prompt", "x", "--checkpoint", "80")
    assert ran.code == 1
    assert "damaged: step-00000080 on alpha" in ran.err
    assert f"orch checkpoints ls {RUN}" in ran.err


def predicting(spec: ContainerSpec) -> Answer:
    """The trainer's `predict`, as far as a machine sees it: a row for each file that was copied."""
    names = sorted(path.name for path in folder_of(spec, "/workspace/in").iterdir())
    rows = "".join(f"{name},cat\n" for name in names)
    (folder_of(spec, "/workspace/out") / "predictions.csv").write_text("image,class\n" + rows)
    return 0, "", ""


@pytest.mark.parametrize("run", [(RUN,), ()])
def test_predictions_come_back_as_a_table(orch: Orch, here: Shelves, run: tuple[str, ...]) -> None:
    record(here, "vision")
    here.nodes["alpha"].engine.programs = predicting
    for name in ("a.png", "b c.png"):
        Path(name).write_bytes(b"picture")
    ran = orch("predict", *run, "a.png", "b c.png", "--to", "there")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == ["image    class", "a.png    cat", "b c.png  cat"]
    table = Path("there/runs") / RUN / "predict" / "predictions.csv"
    assert table.read_text() == "image,class\na.png,cat\nb c.png,cat\n"
    data = json_data(orch("predict", *run, "a.png", "--json").out)
    assert data["predictions"] == [{"image": "a.png", "class": "cat"}]


def test_the_files_are_checked_before_a_node_is_asked(orch: Orch, here: Shelves) -> None:
    Path("one").mkdir()
    for path in (Path("a.png"), Path("one/a.png")):
        path.write_bytes(b"picture")
    missing, none, twice = (orch("predict", RUN, *words) for words in (("b.png",), (), ("a.png", "one/a.png")))
    assert (missing.code, none.code, twice.code) == (3, 2, 2)
    assert "not a file on this computer: b.png" in missing.err
    assert "several files are named a.png" in twice.err
    assert here.nodes["alpha"].calls == []


def test_evaluate_brings_the_pictures(orch: Orch, here: Shelves) -> None:
    record(here, "vision")

    def evaluating(spec: ContainerSpec) -> Answer:
        assert folder_of(spec, "/workspace/Data") == here.root("alpha") / "data" / DIGEST
        (folder_of(spec, "/workspace/out") / "confusion.png").write_bytes(b"picture")
        return 0, "accuracy 0.9\n", ""

    here.nodes["alpha"].engine.programs = evaluating
    ran = orch("evaluate")
    assert (ran.code, ran.out) == (0, "accuracy 0.9\n"), ran.err
    assert (Path("runs") / RUN / "evaluate" / "confusion.png").read_bytes() == b"picture"


def test_evaluate_of_a_module_runs_in_its_code(orch: Orch, here: Shelves) -> None:
    record(here, "custom", "--module", "mine:build", "--set", "width=3", "--epochs", "2", own_code=True)
    (here.root("alpha") / "runs" / RUN / "code").mkdir()
    seen: list[ContainerSpec] = []
    here.nodes["alpha"].engine.programs = lambda spec: (seen.append(spec), (0, '{"loss": 1.0}\n', ""))[1]
    ran = orch("evaluate", "--json")
    assert ran.code == 0, ran.err
    assert json_data(ran.out)["text"] == '{"loss": 1.0}'
    assert seen[0].working_dir == "/workspace/code"
    assert seen[0].command[-6:] == ("--data-dir", "/workspace/Data", "--module", "mine:build", "--set", "width=3")


def test_a_workload_without_the_action_names_those_it_has(orch: Orch, here: Shelves) -> None:
    record(here, "vision")
    ran = orch("sample", "--prompt", "x")
    assert ran.code == 3
    assert f"vision has no sample\n  → orch predict {RUN} FILE or orch evaluate {RUN}" in ran.err
    record(here, "train.py")
    ran = orch("evaluate")
    assert ran.code == 2
    assert f"orch exec {RUN} -- python my_predict.py" in ran.err


def test_missing_memory_and_data_are_found_before_the_start(orch: Orch, here: Shelves) -> None:
    record(here, "vision")
    (here.root("alpha") / "data" / DIGEST).rmdir()
    ran = orch("evaluate")
    assert (ran.code, f"data/{DIGEST}, which does not exist" in ran.err) == (4, True), ran.err
    text = Path("inventory.yaml").read_text()
    Path("inventory.yaml").write_text(text + "defaults: {limits: {memory: 512m, memory_reservation: 256m}}\n")
    ran = orch("evaluate", "--node", "beta")
    assert (ran.code, "0.5 GB are available" in ran.err) == (4, True), ran.err
    assert not any(call[0] == "run_once" for node in here.all for call in node.engine.calls)


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (3, 3), (1, 1), (137, 1)])
def test_a_failure_says_why_and_leaves_nothing(orch: Orch, here: Shelves, code: int, expected: int) -> None:
    record(here, "gpt2")
    here.nodes["alpha"].engine.programs = lambda _spec: (code, "", "error: no weights in it")
    ran = orch("sample", "--prompt", "x")
    assert ran.code == expected
    assert f"alpha: sample failed with exit code {code}: no weights in it" in ran.err


def test_a_file_that_is_refused_is_named(orch: Orch, here: Shelves) -> None:
    record(here, "vision")
    Path("bad.png").write_text("no picture")

    def refusing(spec: ContainerSpec) -> Answer:
        return 3, "", f"error: {folder_of(spec, '/workspace/in')}/bad.png: unknown format\nno images\n"

    here.nodes["alpha"].engine.programs = refusing
    ran = orch("predict", "bad.png")
    assert ran.code == 3
    assert "predict failed with exit code 3: bad.png: unknown format" in ran.err
    assert not Path("runs").exists()


def test_an_interruption_leaves_nothing(orch: Orch, here: Shelves) -> None:
    record(here, "gpt2")

    def interrupted(_spec: ContainerSpec) -> Answer:
        raise KeyboardInterrupt

    here.nodes["alpha"].engine.programs = interrupted
    assert orch("sample", "--prompt", "x").code == 130


def test_mounts_of_another_computers_plan_are_not_used(here: Shelves) -> None:
    plan = replace(here.plan, command=("vision",))
    part = plan.nodes[0]
    wide = replace(part.container, mounts=(Mount(source="/", target="/mnt/all"),))
    part = replace(part, container=wide)
    for own, expected in ((True, {"/workspace/Data", "/mnt/all"}), (False, {"/workspace/Data"})):
        found = ModelUse(action="evaluate", plan=plan, own=own).mounts("alpha", "/p", part)
        assert {mount.target for mount in found} == expected
        assert all(mount.read_only for mount in found)


def test_text_takes_one_file(here: Shelves) -> None:
    plan = replace(here.plan, command=("text",))
    use = ModelUse(action="predict", plan=plan)
    assert use.command((), ["a.csv"])[-4:] == (
        "--csv",
        "/workspace/in/a.csv",
        "--out",
        "/workspace/out/predictions.csv",
    )
    with pytest.raises(UsageError, match="one CSV file at a time"):
        use.must_take(["a.csv", "b.csv"])
    with pytest.raises(ConfigError, match="text has no evaluate"):
        ModelUse(action="evaluate", plan=plan)


def test_the_plan_of_a_node_runs_no_code_of_the_users(orch: Orch, here: Shelves) -> None:
    stolen = Mount(source="/home/ana/.ssh", target="/workspace/keys")
    parts = tuple(replace(part, container=replace(part.container, mounts=(stolen,))) for part in here.plan.nodes)
    plan = replace(here.plan, nodes=parts, command=("custom", "--module", "mine.py:build"), data=())
    file = here.root("beta") / "runs" / RUN / "plan.json"
    file.write_text(to_json(plan))
    refused = orch("evaluate", RUN)
    assert refused.code == 3
    assert "was read from beta and is not this computer's own" in refused.err
    assert here.nodes["beta"].engine.calls == []
    file.write_text(to_json(replace(plan, command=("gpt2", "--preset", "tiny"))))
    seen: list[ContainerSpec] = []
    for node in here.all:
        node.engine.programs = lambda spec: (seen.append(spec), printing(spec))[1]
    assert orch("sample", RUN, "--prompt", "one").code == 0
    assert stolen.source not in {mount.source for spec in seen for mount in spec.mounts}
    assert {spec.image for spec in seen} == {lan.IMAGE.id}
