"""Copy a download from the cache of one node to that of another, through this process.

A file that broke off is continued. Each is compared with size and SHA-256 before it gets its name; links, the commit of
the revision and the manifest come last: what is incomplete is found by no library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from contract.downloads import CachedFile, Manifest, Source, encode_manifest
from orchestrator.fleet.fan_out import Notify
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.specs.errors import CommandFailedError, OrchError, PreflightError, RunFailedError

SPARE_KIB = 256 * 1024
"""Free space to leave on the target: a full disk would make the next checkpoint fail."""

# Constants; $1: the cache. $2: `content` compares hashes too. Lines on stdin: size, SHA-256, name of the partial file,
# path. The answer: free KiB, then for each file that is missing the number of its line and the bytes of its beginning.
_LACKS = r"""
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


@dataclass(frozen=True)
class _Lacking:
    file: CachedFile
    begun: int
    """Bytes of it that came with an earlier try."""


def has_files(node: Node, folder: str, manifest: Manifest) -> bool:
    """Whether the cache `folder` has all files of the manifest, by their sizes."""
    return not _lacking(node, folder, manifest, "sizes")[1]


def copy_download(
    origin: tuple[Node, str], target: tuple[Node, str], manifest: Manifest, source: Source, notify: Notify
) -> None:
    """Copy from node and cache `origin` to `target`. PreflightError: the disk of the target is too small.

    RunFailedError: a file of the origin cannot be read, or another content came; with its node.
    """
    node, folder = target
    free_kib, lacking = _lacking(node, folder, manifest, "content")
    needed = sum(one.file.size - one.begun for one in lacking)
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

    for one in lacking:
        _copy_file(origin, target, one, came)
        done += one.file.size - one.begun
    links = "".join(f"{to} {path}\n" for path, to in manifest.links.items()).encode()
    node.run(["sh", "-c", _LINK, "sh", folder], stdin=links, timeout_s=TRANSFER_TIMEOUT_S).check(
        f"linking {source.text}"
    )
    for path, text in {**manifest.texts, source.manifest: encode_manifest(manifest)}.items():
        node.run(["sh", "-c", _TEXT, "sh", folder, path], stdin=text.encode()).check(f"writing {path}")
    notify(node.name, Progress(text=f"{source.text}: complete"))


def _lacking(node: Node, folder: str, manifest: Manifest, compare: str) -> tuple[int, list[_Lacking]]:
    """Free KiB on the disk of the cache, and the files that it lacks."""
    lines = "".join(f"{one.size} {one.sha256} {one.partial} {one.path}\n" for one in manifest.files).encode()
    ran = node.run(["sh", "-c", _LACKS, "sh", folder, compare], stdin=lines, timeout_s=TRANSFER_TIMEOUT_S)
    try:
        free, *found = [[int(word) for word in line.split()] for line in ran.check(f"reading {folder}").splitlines()]
        files = [(manifest.files[number], begun) for number, begun in found]
        return free[0], [_Lacking(one, begun if 0 < begun <= one.size else 0) for one, begun in files]
    except (ValueError, IndexError):
        raise CommandFailedError(f"its answer about {folder} is not valid", node=node.name) from None


def _copy_file(origin: tuple[Node, str], target: tuple[Node, str], one: _Lacking, tell: Callable[[int], None]) -> None:
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
