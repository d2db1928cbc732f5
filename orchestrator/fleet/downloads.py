"""`--fetch-once`: download on one node before the containers start, and copy from its cache to the others' through this
process.

A file that broke off is continued. Each is compared with size and SHA-256 before it gets its name; links, the commit of
the revision and the manifest come last: what is incomplete is found by no library.
"""

from __future__ import annotations

import json
import os
import secrets as random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from contract.downloads import CachedFile, Manifest, Source, decode_manifest, encode_manifest
from orchestrator.fleet.fan_out import Notify, fan_out, results_of
from orchestrator.fleet.runs.secrets import place_secrets, remove_secrets, secrets_of
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Engine, Node, Progress
from orchestrator.plan.fetch import TOKEN, cache_folder, fetch_container, must_use_our_cache
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import (
    CommandFailedError,
    ConfigError,
    OrchError,
    PreflightError,
    RunFailedError,
    UsageError,
)
from orchestrator.specs.numbers import whole
from orchestrator.specs.plan import NodePlan, Plan
from orchestrator.store.secret_values import secret_values

ERROR = "error: "
"""Prefix of the trainer's error message; all lines after it belong to that message."""
MOST_LINES = 50
"""Maximum number of lines of that message."""
SPARE_KIB = 256 * 1024
"""Free space to leave on the target: a full disk would make the next checkpoint fail."""

# Constants; $1: the cache. $2: `content` compares hashes too. Lines on stdin: size, SHA-256, name of the partial file,
# path. The answer: free KiB, then for each file that is missing the number of its line and the bytes of its beginning.
_MISSING = r"""
mkdir -p -- "$1" && cd -- "$1" || exit 1
df -Pk . | { read -r _; read -r _ _ _ free _; echo "$free"; }
number=0
while read -r size sum partial path; do
  if ! { [ -f "$path" ] && [ "$(stat -Lc %s -- "$path")" = "$size" ] &&
      { [ "$2" != content ] || [ "$(sha256sum < "$path")" = "$sum  -" ]; }; }; then
    echo "$number $(stat -c %s -- "$partial" 2>/dev/null || echo 0)"
  fi
  number=$((number + 1))
done
"""
# $2: the partial file; $3: 0 begins it again.
_WRITE = """
cd -- "$1" && mkdir -p -- fetched/partial || exit 1
[ "$3" != 0 ] || : > "$2" || exit 1
cat >> "$2"
"""
# $2: the partial file, $3: its SHA-256, $4: its path from now on.
_PLACE = """
cd -- "$1" || exit 1
[ "$(sha256sum < "$2")" = "$3  -" ] || { rm -f -- "$2"; echo "it is not what was sent" >&2; exit 9; }
mkdir -p -- "$(dirname -- "$4")" && mv -f -- "$2" "$4"
"""
# Lines on stdin: target, path.
_LINK = """
cd -- "$1" || exit 1
while read -r target path; do
  mkdir -p -- "$(dirname -- "$path")" && ln -sfn -- "$target" "$path" || exit 1
done
sync 2>/dev/null
exit 0
"""
# $2: the path of a small file; its content on stdin.
_TEXT = 'cd -- "$1" && mkdir -p -- "$(dirname -- "$2")" && cat > "$2.new" && mv -f -- "$2.new" "$2"'


@dataclass(frozen=True, kw_only=True)
class NodeCache:
    """The project's cache on a node of the plan."""

    node: Node
    part: NodePlan

    @property
    def folder(self) -> str:
        return cache_folder(self.part)

    def manifest(self, source: Source) -> Manifest | None:
        """The manifest of this download; None: it is not here, or files of it are missing."""
        read = self.node.run(["cat", "--", f"{self.folder}/{source.manifest}"])
        if read.exit_code:
            return None
        try:
            manifest = decode_manifest(read.stdout, source)
        except ValueError:
            return None
        return manifest if has_files(self.node, self.folder, manifest) else None


def fetch_once(nodes: Mapping[str, Node], plan: Plan, sources: Sequence[Source], notify: Notify) -> None:
    """Bring these downloads to every node of the plan, all with the same content.

    Nothing is downloaded that a node has. A second call continues what a first one began. Raises the first error, with
    its node.
    """
    must_use_our_cache(plan)
    caches = [NodeCache(node=nodes[part.node], part=part) for part in plan.nodes]
    for source in sources:
        _bring(caches, plan, source, notify)


def _bring(caches: Sequence[NodeCache], plan: Plan, source: Source, notify: Notify) -> None:
    asked = results_of(fan_out(caches, lambda one: one.manifest(source)))
    found = [(cache, manifest) for cache, manifest in zip(caches, asked, strict=True) if manifest]
    holder, manifest = found[0] if found else _download_on_one(caches, plan, source, notify)
    missing = [cache for cache, held in zip(caches, asked, strict=True) if held != manifest and cache is not holder]
    if found and not missing:
        notify(holder.node.name, Progress(text=f"{source.text}: every node has it already"))

    def supply(target: NodeCache) -> None:
        copy_download((holder.node, holder.folder), (target.node, target.folder), manifest, source, notify)

    results_of(fan_out(missing, supply, timeout_s=TRANSFER_TIMEOUT_S))


def _download_on_one(
    caches: Sequence[NodeCache], plan: Plan, source: Source, notify: Notify
) -> tuple[NodeCache, Manifest]:
    """Download on the first node that reaches the server. PreflightError: none does; other errors are the server's."""
    cut_off = list[OrchError]()
    for cache in caches:
        try:
            _download(cache, plan, source, notify)
        except PreflightError as error:
            if type(error) is not PreflightError:  # the engine, or the connection to the node
                raise
            cut_off.append(error)
            continue
        except RunFailedError as error:
            error.hint = error.hint or "launch again: what came is kept, and the download continues"
            raise
        if manifest := cache.manifest(source):
            return cache, manifest
        raise RunFailedError(
            f"{source.text} was downloaded and is not complete", node=cache.node.name, hint="try again"
        )
    raise PreflightError(
        f"--fetch-once {source.text}: no node reaches the server: {'; '.join(map(str, cut_off))}",
        hint="one node needs a way to the internet; a proxy: --env https_proxy=http://HOST:PORT",
    )


def _download(cache: NodeCache, plan: Plan, source: Source, notify: Notify) -> None:
    node, text = cache.node, f"downloading {source.text}"
    spec = fetch_container(plan, cache.part, source, f"orch-fetch-{random.token_hex(4)}")
    folder = secrets_of(cache.part.container.labels)
    values = secret_values([secret for secret in plan.secrets if secret.name == TOKEN], os.environ)

    node.run(["mkdir", "-p", "--", cache.folder]).check(f"making {cache.folder}")
    notify(node.name, Progress(text=text))
    try:
        place_secrets(node, cache.part, values)
        run_to_end(node.engine, spec, lambda line: notify(node.name, _progress(line, text)), doing=text, node=node.name)
    finally:
        if values:
            remove_secrets(node, folder)


def _progress(line: str, doing: str) -> Progress:
    """Progress that a line of the downloading program states; any other line is shown as it is."""
    try:
        values = json.loads(line)
        done, total = (whole(str(values[name])) for name in ("done", "total"))
    except (ValueError, KeyError, TypeError, RecursionError):
        done = total = None
    return Progress(text=line) if done is None or total is None else Progress(text=doing, done=done, total=total)


@dataclass(frozen=True)
class _MissingFile:
    file: CachedFile
    begun: int
    """Bytes of it that came with an earlier try."""


def has_files(node: Node, folder: str, manifest: Manifest) -> bool:
    """Return whether the cache `folder` has all files of the manifest, by their sizes."""
    return not _missing(node, folder, manifest, "sizes")[1]


def copy_download(
    origin: tuple[Node, str], target: tuple[Node, str], manifest: Manifest, source: Source, notify: Notify
) -> None:
    """Copy from node and cache `origin` to `target`. PreflightError: the disk of the target is too small.

    RunFailedError: a file of the origin cannot be read, or another content came; with its node.
    """
    node, folder = target
    free_kib, missing = _missing(node, folder, manifest, "content")
    needed = sum(one.file.size - one.begun for one in missing)
    if needed // 1024 + SPARE_KIB > free_kib:
        raise PreflightError(
            f"{source.text} needs {needed / 1e6:.0f} MB, and {free_kib * 1.024e-3:.0f} MB are free in {folder}",
            node=node.name,
            hint=f"make room there, or leave the node out: --nodes '!{node.name}'",
        )
    done = manifest.size - needed

    def came(amount: int) -> None:
        text = f"{source.text} from {origin[0].name}"
        notify(node.name, Progress(text=text, done=done + amount, total=manifest.size))

    for one in missing:
        _copy_file(origin, target, one, came)
        done += one.file.size - one.begun
    links = "".join(f"{to} {path}\n" for path, to in manifest.links.items()).encode()
    node.run(["sh", "-c", _LINK, "sh", folder], stdin=links, timeout_s=TRANSFER_TIMEOUT_S).check(
        f"linking {source.text}"
    )
    for path, text in {**manifest.texts, source.manifest: encode_manifest(manifest)}.items():
        node.run(["sh", "-c", _TEXT, "sh", folder, path], stdin=text.encode()).check(f"writing {path}")
    notify(node.name, Progress(text=f"{source.text}: complete"))


def _missing(node: Node, folder: str, manifest: Manifest, compare: str) -> tuple[int, list[_MissingFile]]:
    """Free KiB on the disk of the cache, and the files that it lacks."""
    lines = "".join(f"{one.size} {one.sha256} {one.partial} {one.path}\n" for one in manifest.files).encode()
    ran = node.run(["sh", "-c", _MISSING, "sh", folder, compare], stdin=lines, timeout_s=TRANSFER_TIMEOUT_S)
    try:
        free, *found = [[int(word) for word in line.split()] for line in ran.check(f"reading {folder}").splitlines()]
        files = [(manifest.files[number], begun) for number, begun in found]
        return free[0], [_MissingFile(one, begun if 0 < begun <= one.size else 0) for one, begun in files]
    except (ValueError, IndexError):
        raise CommandFailedError(f"its answer about {folder} is not valid", node=node.name) from None


def _copy_file(
    origin: tuple[Node, str], target: tuple[Node, str], one: _MissingFile, tell: Callable[[int], None]
) -> None:
    file, (node, folder) = one.file, target
    place, broken = f"{origin[1]}/{file.path}", list[OrchError]()

    def chunks() -> Iterator[bytes]:
        """Keep an error of the origin: the target's thread reads this."""
        came = 0
        try:
            for chunk in origin[0].stream(["tail", "-c", f"+{one.begun + 1}", "--", place]):
                came += len(chunk)
                if one.begun + came > file.size:
                    return
                yield chunk
                tell(came)
        except OrchError as error:
            broken.append(error)

    argv = ["sh", "-c", _WRITE, "sh", folder, file.partial, str(one.begun)]
    written = node.run(argv, stdin=chunks(), timeout_s=TRANSFER_TIMEOUT_S)
    for error in broken:
        if isinstance(error, CommandFailedError):
            raise RunFailedError(f"{place} cannot be read: {error.message}", node=origin[0].name)
        raise error
    written.check(f"writing {file.path}", hint="is the disk full? df -h")
    placed = node.run(
        ["sh", "-c", _PLACE, "sh", folder, file.partial, file.sha256, file.path], timeout_s=TRANSFER_TIMEOUT_S
    )
    placed.check(f"finishing {file.path}", hint="try again; if it fails twice, check the disks of both nodes")


def run_to_end(
    engine: Engine,
    spec: ContainerSpec,
    on_line: Callable[[str], None],
    *,
    doing: str = "preparing the data",
    node: str = "",
) -> None:
    """Run the container until it ends, then remove it. Its error message becomes the exception, with `node`."""
    container = engine.create(spec)
    wrong: list[str] = []
    try:
        engine.start(container)
        for line in engine.logs(container, follow=True):
            if wrong or line.text.startswith(ERROR):
                wrong.append(line.text)
            else:
                on_line(line.text)
        ended = engine.wait(container)
    finally:
        engine.remove(container)
    if ended.exit_code == 0:
        for text in wrong:
            on_line(text)
        return
    message = "\n".join(wrong[:MOST_LINES]).removeprefix(ERROR)
    kinds: dict[int | None, type[OrchError]] = {
        kind.exit_code: kind for kind in (UsageError, ConfigError, PreflightError)
    }
    if message and ended.exit_code in kinds:
        raise kinds[ended.exit_code](message, node=node)
    raise RunFailedError(message or f"{doing} failed with exit code {ended.exit_code}", node=node)
