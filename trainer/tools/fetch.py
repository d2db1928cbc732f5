"""Download a repository of the Hugging Face hub, or a file for torch.hub, into the cache of a node.

    python -m trainer.tools.fetch hf:ORG/NAME --cache /workspace/cache

Needs the standard library alone. A file that broke off is continued. Links, the commit of the revision and the manifest
are written last: what is incomplete is found by no library. Each line of stdout is JSON: bytes done, and in all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from contract.downloads import (
    CHECKPOINTS,
    CachedFile,
    Manifest,
    Source,
    encode_manifest,
    is_inside,
    partial_of,
    read_source,
)
from trainer.errors import ConfigurationError, OptionError, TrainerError

ENDPOINT = "https://huggingface.co"
CHUNK = 1024 * 1024
SILENCE_S = 30.0
SPARE = 256 * 1024 * 1024
"""Bytes that stay free on the disk: a full one would make the next checkpoint fail."""
EVERY_S = 0.5
HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.")
"""Beginning of the SHA-256 in the name of a file, as torch.hub checks it."""
Tell = Callable[[int, int], None]


class NoInternetError(TrainerError):
    """The server was not reached from this node; another may reach it."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file to download."""

    url: str
    path: str
    """Relative to the cache."""
    size: int
    sha256: str = ""
    """The SHA-256, or its beginning; empty: not known."""
    git_id: str = ""
    """Git's id of its content, where there is no SHA-256."""


def fetch(source: Source, cache: Path, *, endpoint: str, token: str, tell: Tell) -> Manifest:
    """Download what is missing of `source`, and return the manifest that was written. TrainerError: the reason."""
    headers = {"Authorization": f"Bearer {token}"} if token and source.repo else {}
    links, texts = dict[str, str](), dict[str, str]()
    if source.repo:
        wanted, links, texts = _repository(source, endpoint.rstrip("/"), headers)
    else:
        wanted = [_single_file(source)]
    have = {one.path: _digest(cache / one.path, one) for one in wanted}
    begun = {one.path: _size(cache / partial_of(one.path)) for one in wanted if not have[one.path]}
    total = sum(one.size for one in wanted)
    missing = sum(one.size - begun[one.path] for one in wanted if not have[one.path])
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free - SPARE
    if missing > free:
        raise ConfigurationError(
            f"{source.text} needs {missing / 1e6:.0f} MB, and {max(0, free) / 1e6:.0f} MB are available on the disk"
        )
    done, files = 0, list[CachedFile]()

    def came(amount: int) -> None:
        tell(done + amount, total)

    for one in wanted:
        files.append(
            CachedFile(path=one.path, size=one.size, sha256=have[one.path] or _download(one, cache, headers, came))
        )
        done += one.size
        came(0)
    manifest = Manifest(source=source.text, files=tuple(files), links=links, texts=texts)
    _install(cache, manifest, source)
    return manifest


def _repository(
    source: Source, endpoint: str, headers: Mapping[str, str]
) -> tuple[list[Wanted], dict[str, str], dict[str, str]]:
    """Files of one commit, with links and the reference to it, laid out as huggingface_hub's cache is."""
    kind = "datasets" if source.is_dataset else "models"
    about = f"{endpoint}/api/{kind}/{source.repo}/revision/{quote(source.revision, safe='')}?blobs=true"
    try:
        with _open(about, headers) as answer:
            found: dict[str, Any] = json.loads(answer.read(64 * CHUNK))
        commit, siblings = str(found["sha"]), list(found["siblings"])
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ValueError
        base = f"{endpoint}/{'datasets/' if source.is_dataset else ''}{source.repo}/resolve/{commit}"
        wanted, links = dict[str, Wanted](), dict[str, str]()
        for each in siblings:
            name, lfs = str(each["rfilename"]), each.get("lfs") or {}
            id = str(lfs.get("sha256") or each["blobId"])
            blob = f"{source.folder}/blobs/{id}"
            wanted[blob] = Wanted(
                url=f"{base}/{quote(name)}",
                path=blob,
                size=int(each["size"]),
                sha256=id if lfs else "",
                git_id="" if lfs else id,
            )
            links[f"{source.folder}/snapshots/{commit}/{name}"] = f"{'../' * (2 + name.count('/'))}blobs/{id}"
    except (ValueError, KeyError, TypeError):
        raise TrainerError(f"{source.text}: the answer of {endpoint} is not understood") from None
    texts = {} if source.revision == commit else {f"{source.folder}/refs/{source.revision}": commit}
    for path in (*wanted, *links, *texts):
        if not is_inside(path, source):
            raise TrainerError(f"{source.text}: the repository names a file {path!r}, which no cache can hold")
    return list(wanted.values()), links, texts


def _single_file(source: Source) -> Wanted:
    with _open(source.url, {}) as answer:  # HEAD is refused by some servers
        length = answer.headers.get("Content-Length", "")
    if not length.isdigit():
        raise ConfigurationError(f"{source.url}: the server does not say how long the file is")
    named = HASH_IN_NAME.search(source.file)
    sha256 = source.sha256 or (named[1] if named else "")
    return Wanted(url=source.url, path=f"{CHECKPOINTS}/{source.file}", size=int(length), sha256=sha256)


def _download(one: Wanted, cache: Path, headers: Mapping[str, str], tell: Callable[[int], None]) -> str:
    """Download one file, from where an earlier try ended, and return its SHA-256."""
    partial = cache / partial_of(one.path)
    partial.parent.mkdir(parents=True, exist_ok=True)
    while (before := _size(partial)) < one.size:
        try:
            _continue(one, partial, before, headers, tell)
        except NoInternetError:
            if _size(partial) <= before:  # another try would bring nothing more
                raise
        if _size(partial) <= before:
            raise TrainerError(f"{one.url} ended after {before} of {one.size} bytes")
    if not one.size:
        partial.touch()
    sha256 = _digest(partial, one)
    if not sha256:
        partial.unlink()
        raise TrainerError(f"{one.url} is not the file that its hash promises; it was removed: try again")
    (cache / one.path).parent.mkdir(parents=True, exist_ok=True)
    partial.replace(cache / one.path)
    return sha256


def _continue(one: Wanted, partial: Path, before: int, headers: Mapping[str, str], tell: Callable[[int], None]) -> None:
    with _open(one.url, headers, {"Range": f"bytes={before}-"} if before else {}) as answer:
        continued = before and answer.status == 206
        with partial.open("ab" if continued else "wb") as target:
            came = before if continued else 0
            for chunk in _chunks(one.url, answer):
                came += len(chunk)
                if came > one.size:
                    target.truncate(0)
                    raise TrainerError(f"{one.url} is longer than the {one.size} bytes that were announced")
                target.write(chunk)
                tell(came)


def _chunks(url: str, answer: Any) -> Iterator[bytes]:
    """Turn an error of the connection, not of the disk, into NoInternetError."""
    try:
        while chunk := answer.read(CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise NoInternetError(f"{url}: {error or type(error).__name__}") from None


def _open(url: str, secret: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Any:
    """Open a URL. `secret`: headers that a redirection to another server does not get."""
    request = Request(url, headers={"User-Agent": "orch", "Accept-Encoding": "identity", **(headers or {})})  # noqa: S310  # the scheme was checked
    for name, value in secret.items():
        request.add_unredirected_header(name, value)
    try:
        return urlopen(request, timeout=SILENCE_S)  # noqa: S310
    except HTTPError as error:
        raise _refusal(url, error) from None
    except (OSError, HTTPException) as error:
        raise NoInternetError(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}") from None


def _refusal(url: str, error: HTTPError) -> TrainerError:
    if error.code in (401, 403):
        return ConfigurationError(
            f"{url}: refused ({error.code}): a private or gated repository needs --secret HF_TOKEN, with access to it"
        )
    if error.code == 404:
        return ConfigurationError(f"{url}: not found (404): is the name right?")
    return TrainerError(f"{url}: the server answered {error.code} {error.reason}")


def _digest(path: Path, one: Wanted) -> str:
    """SHA-256 of a file with the size and the hash that are known; empty if it is another file or not there."""
    if not path.is_file() or path.stat().st_size != one.size:
        return ""
    content, git = hashlib.sha256(), hashlib.sha1(f"blob {one.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            content.update(chunk)
            if one.git_id:
                git.update(chunk)
    sha256 = content.hexdigest()
    return sha256 if sha256.startswith(one.sha256) and one.git_id in ("", git.hexdigest()) else ""


def _install(cache: Path, manifest: Manifest, source: Source) -> None:
    for path, target in manifest.links.items():
        link = cache / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for path, text in {**manifest.texts, source.manifest: encode_manifest(manifest)}.items():
        file = cache / path
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.new")
        new.write_text(text)
        new.replace(file)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.tools.fetch")
    parser.add_argument("source", help="hf:ORG/NAME, hf:datasets/ORG/NAME or https://HOST/FILE.pth")
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(argv)
    last, shown = 0.0, -1

    def tell(done: int, total: int) -> None:
        nonlocal last, shown
        if done != shown and (done == total or time.monotonic() - last >= EVERY_S):
            last, shown = time.monotonic(), done
            print(json.dumps({"done": done, "total": total}), flush=True)

    try:
        file = environ.get("HF_TOKEN_FILE", "")
        token = Path(file).read_text().strip() if file else environ.get("HF_TOKEN", "")
        try:
            source = read_source(given.source)
        except ValueError as error:
            raise OptionError(f"{given.source}: {error}") from None
        fetch(source, given.cache, endpoint=environ.get("HF_ENDPOINT") or ENDPOINT, token=token, tell=tell)
    except (TrainerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
