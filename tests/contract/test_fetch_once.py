"""A download on one node, and its copies on the others: continued, compared, and complete or not found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.downloads import CachedFile, Manifest, Source, partial_of, read_source
from orchestrator.fleet.connect import connect
from orchestrator.fleet.downloads import copy_download, fetch_once, has_files
from orchestrator.nodes.interface import Node, Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.launch import plan_launch
from orchestrator.specs.errors import CommandFailedError, ConfigError, PreflightError, RunFailedError, UsageError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.request import LaunchRequest
from orchestrator.specs.secret import Secret
from tests import lan
from tests.hub import COMMIT, REPO, Hub, serving

WEIGHTS = bytes(range(256)) * 8_000  # 2 MB
FILES = {"config.json": b"{}", "a folder/words.txt": b"el gato\n", "model.safetensors": WEIGHTS}
SOURCE = read_source(f"hf:{REPO}")
SNAPSHOT = f"{SOURCE.folder}/snapshots/{COMMIT}"
NAMES = ("alpha", "beta", "gamma")
TOKEN = "hf_secret"  # noqa: S105  # of no account


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(files=dict(FILES), plain={"/net.pth": WEIGHTS})) as running:
        yield running


Fetch = Callable[..., list[str]]


@pytest.fixture
def fetch(tmp_path: Path, hub: Hub) -> Iterator[Fetch]:
    """Three nodes that are processes, each with a folder of its own; the answer is what was shown."""
    specs = tuple(
        NodeSpec.model_validate(
            {"name": name, "address": f"127.0.0.{number}", "connection": "local", "engine": "process",
             "workspace": str(tmp_path / name)}
        )
        for number, name in enumerate(NAMES, 11)
    )  # fmt: skip
    nodes = {spec.name: connect(spec) for spec in specs}

    def run(source: Source = SOURCE, **changes: object) -> list[str]:
        wanted = {"environment": {"HF_ENDPOINT": hub.url}, **changes}
        request = LaunchRequest(project="p", nodes=specs, **wanted)  # type: ignore[arg-type]
        facts = {name: lan.facts(name, uid=os.getuid(), gid=os.getgid()) for name in NAMES}
        shown = list[str]()
        plan = plan_launch(request, facts, lan.IDENTITY)
        fetch_once(nodes, plan, [source], lambda node, progress: shown.append(f"{node}: {progress.text}"))
        return shown

    yield run
    for node in nodes.values():
        node.close()


def held(folder: Path) -> dict[str, bytes]:
    return {name: (folder / SNAPSHOT / name).read_bytes() for name in FILES if (folder / SNAPSHOT / name).exists()}


def test_one_node_downloads_and_the_others_get_copies(fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
    shown = fetch()
    caches = [tmp_path / name / "p" / "cache" for name in NAMES]
    assert [held(cache) for cache in caches] == [FILES] * 3
    assert {(cache / SOURCE.folder / "refs" / "main").read_text() for cache in caches} == {COMMIT}
    assert hub.begun_at("model.safetensors") == [0]
    assert f"alpha: downloading hf:{REPO}" in shown
    assert {f"{name}: hf:{REPO}: complete" for name in NAMES[1:]} <= set(shown)
    assert not any(list((cache / "fetched" / "partial").glob("*")) for cache in caches)
    hub.failing, before = 503, len(hub.asked)
    assert fetch() == [f"alpha: hf:{REPO}: every node has it already"]  # without the server
    assert len(hub.asked) == before


def test_a_node_that_lost_files_gets_them_from_another(fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
    fetch()
    asked = len(hub.asked)
    (tmp_path / "alpha/p/cache" / SNAPSHOT / "model.safetensors").resolve().unlink()
    shown = fetch()
    assert f"alpha: hf:{REPO} from beta" in shown
    assert held(tmp_path / "alpha/p/cache") == FILES
    assert len(hub.asked) == asked


def test_a_file_for_torch_hub(fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
    fetch(read_source(f"{hub.url}/net.pth"))
    for name in NAMES:
        assert (tmp_path / name / "p/cache/torch/hub/checkpoints/net.pth").read_bytes() == WEIGHTS


def test_an_error_of_the_server_names_the_node_and_leaves_nothing_to_be_found(
    fetch: Fetch, hub: Hub, tmp_path: Path
) -> None:
    hub.token = TOKEN
    with pytest.raises(ConfigError, match="--secret HF_TOKEN") as refused:
        fetch()
    assert refused.value.node == "alpha"
    assert held(tmp_path / "alpha/p/cache") == {}


def test_a_server_that_breaks_off_is_continued_by_the_next_launch(fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.breaks_after["model.safetensors"] = 0
    with pytest.raises(RunFailedError, match="ended after 0 of") as broken:
        fetch()
    assert "launch again" in broken.value.hint
    hub.breaks_after.clear()
    fetch()
    assert held(tmp_path / "gamma/p/cache") == FILES


def test_without_internet_every_node_is_tried(fetch: Fetch) -> None:
    with pytest.raises(PreflightError, match=r"no node reaches the server: alpha: .*beta: .*gamma: ") as refused:
        fetch(environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "https_proxy" in refused.value.hint


def test_the_token_is_a_file_in_memory(fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shown = fetch(secrets=(Secret(name="HF_TOKEN"),))
    assert not any(TOKEN in line for line in shown)
    assert not Path(f"/dev/shm/orch-{os.getuid()}/{lan.IDENTITY.run_id}/0-alpha").exists()


def test_another_cache_of_the_ranks_is_refused(fetch: Fetch) -> None:
    with pytest.raises(UsageError, match="--env HF_HOME makes the ranks read another one"):
        fetch(environment={"HF_HOME": "/elsewhere"})


# ── one copy, over every seam ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Node, str]:
    return LocalNode("origin"), str(tmp_path / "origin")


@pytest.fixture
def download(origin: tuple[Node, str]) -> Manifest:
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    blob = CachedFile(path=f"{SOURCE.folder}/blobs/{'e' * 40}", size=len(WEIGHTS), sha256=sha256)
    path = Path(origin[1]) / blob.path
    path.parent.mkdir(parents=True)
    path.write_bytes(WEIGHTS)
    link, target = f"{SNAPSHOT}/a folder/net", f"../../../blobs/{'e' * 40}"
    texts = {f"{SOURCE.folder}/refs/main": COMMIT}
    return Manifest(source=SOURCE.text, files=(blob,), links={link: target}, texts=texts)


def quiet(_node: str, _progress: Progress) -> None:
    return


def test_a_copy_continues_what_broke_off(
    node: Node, origin: tuple[Node, str], download: Manifest, tmp_path: Path
) -> None:
    there, (blob,) = tmp_path / "there", download.files
    (there / "fetched/partial").mkdir(parents=True)
    (there / partial_of(blob.path)).write_bytes(WEIGHTS[:1_500_000])
    sent = list[int]()
    copy_download(origin, (node, str(there)), download, SOURCE, lambda _, progress: sent.append(progress.done))
    assert (there / SNAPSHOT / "a folder/net").read_bytes() == WEIGHTS
    assert min(done for done in sent if done) > 1_500_000
    assert has_files(node, str(there), download)
    assert not (there / partial_of(blob.path)).exists()


def test_another_content_gets_no_name(node: Node, origin: tuple[Node, str], download: Manifest, tmp_path: Path) -> None:
    there, (blob,) = tmp_path / "there", download.files
    (there / "fetched/partial").mkdir(parents=True)
    (there / partial_of(blob.path)).write_bytes(b"other" * 1000)
    with pytest.raises(CommandFailedError, match="not what was sent"):
        copy_download(origin, (node, str(there)), download, SOURCE, quiet)
    assert not (there / SOURCE.folder).exists()
    copy_download(origin, (node, str(there)), download, SOURCE, quiet)  # what was wrong is gone
    assert (there / blob.path).read_bytes() == WEIGHTS


def test_a_full_disk_is_noticed_first(node: Node, origin: tuple[Node, str], download: Manifest, tmp_path: Path) -> None:
    (blob,) = download.files
    huge = replace(download, files=(replace(blob, size=2**43),))
    with pytest.raises(PreflightError, match=r"needs 8796093 MB, and \d+ MB are free") as refused:
        copy_download(origin, (node, str(tmp_path / "there")), huge, SOURCE, quiet)
    assert refused.value.node == node.name
