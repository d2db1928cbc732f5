"""Division of prepared data into parts, and what each node is sent of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.data_parts import divide, files_of, here, is_part, training_shards
from orchestrator.fleet.planning.request import build_request
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir
from orchestrator.fleet.runs.bring_artifacts import bring
from orchestrator.fleet.runs.known_sums import folder_digest
from orchestrator.nodes.fake import FakeEngine
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.specs.data import data_name, read_data_options
from orchestrator.specs.errors import ConfigError, PreflightError, UsageError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_line import launch_words
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from tests import lan

THREE = lan.NAMES[:3]
SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


def manifest_of(sizes: list[int]) -> dict[str, object]:
    shards = [
        {"file": f"train-{number:012x}.bin", "bytes": size, "sha256": "0" * 64, "tokens": size // 2}
        for number, size in enumerate(sizes)
    ]
    entry = {"file": "validation-0.bin", "bytes": 5, "sha256": "1" * 64, "tokens": 2}
    return {"tokenizer": {"file": "t.json"}, "splits": {"train": {"shards": shards}, "validation": {"shards": [entry]}}}


@given(SIZES, st.integers(1, 8))
def test_every_shard_is_in_one_part(sizes: list[int], parts: int) -> None:
    manifest = manifest_of(sizes)
    if len(sizes) < parts:
        with pytest.raises(ValueError, match=f"in {len(sizes)} shards"):
            divide(manifest, parts)
        return
    divided = divide(manifest, parts)
    assert divided == divide(manifest, parts)
    held = [here(training_shards(part)) for part in divided]
    assert sorted(number for numbers in held for number in numbers) == list(range(len(sizes)))
    weights = [sum(sizes[number] for number in numbers) for numbers in held]
    assert max(weights) - min(weights) <= max(sizes), "parts differ by one shard at most"
    for part in divided:
        assert is_part(part)
        assert {"t.json", "validation-0.bin"} <= set(files_of(part)), "all else is everywhere"
        assert [shard["tokens"] for shard in training_shards(part)] == [size // 2 for size in sizes]
    assert not is_part(manifest), "the manifest itself is left as it was"


@pytest.mark.parametrize("train", [None, [], {"rows": 3}, {"shards": [1]}, {"shards": 3}])
def test_data_without_shards_is_refused(train: object) -> None:
    for manifest in ({"splits": {"train": train}}, {}):
        with pytest.raises(ValueError, match="not in shards"):
            divide(manifest, 2)


def test_a_part_is_not_divided_again() -> None:
    with pytest.raises(ValueError, match="a part of data itself"):
        divide(divide(manifest_of([5, 5, 5, 5]), 2)[0], 2)


# ── Options and plan ──────────────────────────────────────────────────────────────────────────────


def prepared(folder: Path, shards: int = 6) -> Path:
    """A data folder with small shards."""
    folder.mkdir()
    manifest = manifest_of([1000 + number for number in range(shards)])
    for name in files_of(manifest):
        (folder / name).write_bytes(name.encode() * 20)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


INVENTORY = Inventory(nodes=tuple(lan.spec(name) for name in lan.NAMES))


def asked(data: Path | None, *, earlier: Plan | None = None, **options: object) -> tuple[str, ...]:
    typed = read_data_options([str(data)]) if data else ()
    given = LaunchOptions(data=typed, **{"command": ("gpt2",), "nodes": "3", "shard": True, **options})  # type: ignore[arg-type]  # any option
    return build_request(INVENTORY, given, earlier, {}).data[0].parts


def test_parts_are_the_nodes_by_name(tmp_path: Path) -> None:
    data = prepared(tmp_path / "Data")
    assert asked(data) == ("alpha", "beta", "gamma")
    assert asked(data, nodes="gamma,alpha") == ("alpha", "gamma")
    assert asked(data, nodes="1") == (), "one node has all of it"
    assert asked(data, shard=False) == ()


def test_what_cannot_be_divided_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be divided among 3 nodes: its .* are in 2 shards") as why:
        asked(prepared(tmp_path / "few", 2))
    assert "without --shard" in why.value.hint
    with pytest.raises(UsageError, match=r"there is no \./Data"):
        asked(None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").write_text("")
    with pytest.raises(UsageError, match="code of yours reads its own"):
        asked(prepared(tmp_path / "Data"), command=("python", "train.py"), workdir=tmp_path / "mine")


def test_a_resumed_run_keeps_the_parts_while_every_node_has_one(tmp_path: Path) -> None:
    data = prepared(tmp_path / "Data")
    digest = folder_digest(data)
    before = lan.plan(THREE, data=lan.data(digest, data, parts=THREE), command=("gpt2",))
    assert asked(None, earlier=before, shard=False) == THREE
    assert asked(None, earlier=before, nodes="alpha,gamma", shard=False) == THREE
    assert asked(None, earlier=before, nodes="alpha,gamma") == ("alpha", "gamma"), "divided again"
    assert asked(None, earlier=before, nodes="alpha,delta", shard=False) == ("alpha", "delta"), "delta had none"
    assert asked(data, earlier=before, shard=False) == (), "other data, all of it"


def test_a_plan_names_each_nodes_part() -> None:
    plan = lan.plan(("alpha", "gamma"), data=lan.data(parts=THREE), command=("gpt2",))
    folders = [Path(part.container.mounts[1].source).name for part in plan.nodes]
    assert folders == [data_name("0123456789abcdef", THREE, node) for node in ("alpha", "gamma")]
    assert len({*folders, "0123456789abcdef"}) == 3
    assert "the training samples of beta are not in this run; resume with --shard to divide all again" in plan.notes
    assert "--shard" in launch_words(plan)
    assert from_json(to_json(plan), where="plan.json") == plan
    with pytest.raises(ConfigError, match="not a plan"):
        from_json(to_json(replace(plan, data=lan.data(parts=("alpha", "beta")))), where="plan.json")


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────


def bring_parts(data: Path, origin: Path, folder: Path, *names: str, fresh: bool = True) -> list[tuple[str, str]]:
    reports: list[tuple[str, str]] = []
    digest = folder_digest(data)
    artifact = Artifact(what="data", run_id="0102-1504-ab12", digest=digest, origin=str(origin), parts=THREE)
    targets = [
        ProjectDir(node=LocalNode(name, f"127.0.0.{11 + number}", FakeEngine(name)), folder=str(folder / name))
        for number, name in enumerate(names)
    ]

    def notify(node: str, progress: Progress) -> None:
        if progress.total <= 1:
            reports.append((node, progress.text))

    bring(artifact, targets, [], targets, fresh=data if fresh else None, notify=notify)
    return reports


def test_each_node_gets_its_part_alone(tmp_path: Path) -> None:
    data = prepared(tmp_path / "Data")
    reported = bring_parts(data, data, tmp_path, *THREE)
    assert sorted(reported) == [(name, "data copied") for name in THREE]
    manifest = json.loads((data / "manifest.json").read_text())
    for name, part in zip(THREE, divide(manifest, 3), strict=True):
        (there,) = (tmp_path / name / "data").iterdir()
        assert there.name == data_name(folder_digest(data), THREE, name)
        assert json.loads((there / "manifest.json").read_text()) == part
        assert {path.name for path in there.iterdir()} == {"manifest.json", *files_of(part)}
        for file in files_of(part):
            assert not (there / file).is_symlink()
            assert (there / file).read_bytes() == (data / file).read_bytes()


def test_a_part_that_is_lost_comes_from_the_controller_or_not_at_all(tmp_path: Path) -> None:
    data = prepared(tmp_path / "Data")
    assert bring_parts(data, data, tmp_path, "gamma", fresh=False) == [("gamma", "data copied")]
    with pytest.raises(PreflightError, match="beta lacks the data that run 0102-1504-ab12 was launched with"):
        bring_parts(data, tmp_path / "elsewhere", tmp_path, "beta", fresh=False)
