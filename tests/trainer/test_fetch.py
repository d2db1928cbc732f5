"""Downloads into a node's cache, from a hub on loopback: complete and as promised, or not found."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contract.downloads import Manifest, decode_manifest, read_source
from tests.hub import COMMIT, REPO, Hub, serving
from tests.trainer.conftest import Result
from trainer.tools import fetch as fetching

WEIGHTS = bytes(range(256)) * 12_000  # 3 MB
FILES = {"config.json": b'{"model_type": "gpt2"}', "data/words.txt": b"el gato\n", "model.safetensors": WEIGHTS}
TOKEN = "hf_secret"  # noqa: S105  # of no account
REPOSITORY = f"hf:{REPO}"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(files=dict(FILES), plain={"/w/net.pth": WEIGHTS})) as running:
        yield running


class Fetch(NamedTuple):
    """The program, on one cache."""

    cache: Path
    hub: Hub
    capsys: pytest.CaptureFixture[str]

    def __call__(self, source: str = REPOSITORY, **environ: str) -> Result:
        code = fetching.main([source, "--cache", str(self.cache)], {"HF_ENDPOINT": self.hub.url, **environ})
        captured = self.capsys.readouterr()
        return Result(code=code, out=captured.out, err=captured.err)

    def manifest(self, source: str = REPOSITORY) -> Manifest | None:
        file = self.cache / read_source(source).manifest
        return decode_manifest(file.read_text(), read_source(source)) if file.is_file() else None

    @property
    def found(self) -> list[str]:
        """Files that a library would find."""
        there = [self.cache / "huggingface", self.cache / "torch"]
        return [str(path) for folder in there for path in folder.rglob("*") if path.name in ("main", *FILES)]


@pytest.fixture
def fetch(tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> Fetch:
    return Fetch(tmp_path / "cache", hub, capsys)


def test_a_repository_is_where_the_libraries_look_for_it(fetch: Fetch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    ran = fetch()
    assert (ran.code, ran.err) == (0, "")
    assert f'"done": {sum(map(len, FILES.values()))}' in ran.out.splitlines()[-1]
    where: dict[str, Any] = {"cache_dir": fetch.cache / "huggingface" / "hub", "local_files_only": True}
    folder = Path(huggingface_hub.snapshot_download(REPO, **where))
    assert folder.name == COMMIT
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert (
        Path(huggingface_hub.hf_hub_download(REPO, "data/words.txt", **where)).read_bytes() == FILES["data/words.txt"]
    )
    manifest = fetch.manifest()
    assert manifest
    assert manifest.size == sum(map(len, FILES.values()))


def test_what_is_there_is_not_downloaded_again(fetch: Fetch) -> None:
    assert fetch().code == 0
    fetch.hub.asked.clear()
    assert fetch().code == 0
    assert fetch.hub.asked == [f"/api/models/{REPO}/revision/main@0"]


def test_a_download_that_breaks_off_is_continued_and_not_found_until_then(fetch: Fetch) -> None:
    fetch.hub.failing = 503
    ran = fetch()
    assert (ran.code, fetch.found, fetch.manifest()) == (1, [], None)
    assert "the server answered 503" in ran.err
    fetch.hub.failing, fetch.hub.breaks_after["model.safetensors"] = 0, 1_000_000
    ran = fetch()  # each answer brings a part, so the rest is asked for
    assert ran.code == 0
    assert fetch.hub.begun_at("model.safetensors") == [0, 1_000_000, 2_000_000, 3_000_000]


def test_an_interrupted_download_continues_where_it_ended(fetch: Fetch) -> None:
    fetch.hub.breaks_after["model.safetensors"] = 0
    (fetch.cache / "fetched" / "partial").mkdir(parents=True)
    blob = f"huggingface/hub/models--ana--tiny-es/blobs/{hashlib.sha256(WEIGHTS).hexdigest()}"
    (fetch.cache / fetching.partial_of(blob)).write_bytes(WEIGHTS[:1234])
    ran = fetch()
    assert ran.code == 1
    assert "ended after 1234 of 3072000 bytes" in ran.err
    assert fetch.found == []
    fetch.hub.breaks_after.clear()
    fetch.hub.asked.clear()
    assert fetch().code == 0
    assert fetch.hub.begun_at("model.safetensors") == [1234]


def test_another_content_than_promised_is_not_saved(fetch: Fetch) -> None:
    for path in (REPOSITORY, f"{fetch.hub.url}/w/net-{'ab' * 4}.pth"):
        fetch.hub.plain[f"/w/net-{'ab' * 4}.pth"] = WEIGHTS
        about = fetch.hub.about()
        fetch.hub.plain[f"/api/models/{REPO}/revision/main"] = about
        fetch.hub.files["model.safetensors"] = WEIGHTS[:-1] + b"!"
        fetch.hub.content = lambda path: (
            fetch.hub.plain.get(path) or fetch.hub.files.get(path.partition(f"{COMMIT}/")[2])
        )  # type: ignore[method-assign]
        ran = fetch(path)
        assert ran.code == 1
        assert "is not the file that its hash promises" in ran.err
        assert fetch.found == []
        assert fetch.manifest(path) is None


def test_a_file_for_torch_hub(fetch: Fetch) -> None:
    url = f"{fetch.hub.url}/w/net.pth"
    assert fetch(url).code == 0
    assert (fetch.cache / "torch/hub/checkpoints/net.pth").read_bytes() == WEIGHTS
    assert fetch(f"{url}#sha256={'0' * 64}").code == 1


def test_a_token_is_read_from_its_file_and_its_absence_explained(fetch: Fetch, tmp_path: Path) -> None:
    fetch.hub.token = TOKEN
    ran = fetch()
    assert ran.code == 3
    assert "--secret HF_TOKEN" in ran.err
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    ran = fetch(HF_TOKEN_FILE=str(tmp_path / "token"))
    assert (ran.code, TOKEN in ran.out) == (0, False)


def test_a_server_that_is_not_reached_is_distinguished_from_one_that_refuses(fetch: Fetch) -> None:
    assert fetch(HF_ENDPOINT="http://127.0.0.1:9").code == 4
    ran = fetch("hf:ana/other")
    assert ran.code == 3
    assert "not found (404)" in ran.err


def test_a_full_disk_is_noticed_first(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(fetch.cache.parent)._replace(free=fetching.SPARE + 1_000_000)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _path: usage)
    ran = fetch()
    assert ran.code == 3
    assert "needs 3 MB, and 1 MB are available on the disk" in ran.err
    assert fetch.hub.begun_at("model.safetensors") == []


@pytest.mark.parametrize("name", ["../../../escape", "a/../../b", "/etc/passwd", "space ", "new\nline", "half\ud800"])
def test_names_of_a_server_do_not_lead_out_of_the_cache(fetch: Fetch, name: str) -> None:
    fetch.hub.files[name] = b"x"
    ran = fetch()
    assert ran.code == 1
    assert fetch.found == []
    assert fetch.hub.asked == [f"/api/models/{REPO}/revision/main@0"]
    assert not fetch.cache.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ana/tiny", "expected hf:"),
        ("hf:../x", "expected hf:"),
        ("hf:ana/tiny@../../x", "expected hf:"),
        ("http://example.org/net.pth", "http does not protect the file"),
        ("https://user:word@example.org/net.pth", "password"),
        ("https://example.org/net.pth#sha256=12", "64 hexadecimal digits"),
        ("https://example.org/", "expected hf:"),
        ("file:///etc/passwd", "expected hf:"),
    ],
)
def test_sources_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_source(text)


def test_sources_that_are_taken() -> None:
    assert read_source("hf:datasets/ana/words@v1").folder == "huggingface/hub/datasets--ana--words"
    assert read_source("hf:gpt2").repo == "gpt2"
    assert read_source("http://192.168.1.5:8000/net.pth").file == "net.pth"
    assert read_source(f"http://example.org/net.pth#sha256={'a' * 64}").sha256 == "a" * 64
