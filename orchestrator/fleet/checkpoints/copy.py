"""Copy a checkpoint between two nodes or the controller, name the best one, remove old ones.

The bytes stream through this process and are hashed on the way: damage at the source differs from damage in transit.
The target writes to a temporary folder, verifies, syncs and renames: a checkpoint under its own name is complete."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from contract.checkpoint import CheckpointFile, encode_best
from contract.result_paths import HEAD_BYTES
from orchestrator.fleet.fan_out import Notify, Outcome, fan_out
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.specs.checkpoint import CheckpointCopy
from orchestrator.specs.errors import CommandFailedError, OrchError, RunFailedError

SPARE_KIB = 256 * 1024
"""Free space to leave on the target: a full disk would make the next checkpoint fail."""
FULL = 28
"""Exit code of the script when space is short: the number of ENOSPC."""

# Constants. Everything is for the node's user alone. $1: the folder of checkpoints, $2: KiB that must be free, $3: a
# word for the folder aside. What a broken copy of yesterday left is removed. The answer is the absolute folder.
_BEGIN = """
umask 077
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
mkdir -p -- "$root" && cd -- "$root" || exit 1
find . -maxdepth 1 -name '.copy-*' -mmin +1440 -exec rm -rf -- {} +
free=$(df -Pk . | { read -r _; read -r _ _ _ free _; printf %s "$free"; })
[ "$free" -ge "$2" ] || { echo "$((free / 1024)) MiB are free there" >&2; exit 28; }
mkdir -- ".copy-$3" && cd -- ".copy-$3" && pwd -P
"""
_WRITE = 'umask 077; cat > "$1/$2"'

# $1: the folder aside, $2: its name from now on; lines for `sha256sum -c` on stdin. A folder of this name that is there
# is a damaged or a different one. The two names are exchanged in one step where mv (coreutils 9.5) and the file system
# can; otherwise a kill in between leaves .tmp-old-NAME, which counts again at the next look at the checkpoints.
_FINISH = """
cd -- "$1" && sha256sum -c - >/dev/null 2>&1 || { echo "it is not what was sent" >&2; exit 9; }
sync -- ./* . 2>/dev/null || sync
cd .. || exit 1
if [ ! -e "$2" ]; then
  mv -T -- "$1" "$2" || exit 1
elif ! mv --exchange -T -- "$1" "$2" 2>/dev/null; then
  rm -rf -- ".tmp-old-$2"
  mv -T -- "$2" ".tmp-old-$2" && mv -T -- "$1" "$2" || exit 1
  mv -T -- ".tmp-old-$2" "$1"
fi
sync -- . 2>/dev/null || sync
rm -rf -- "$1"
"""


def copy_checkpoint(source: Node, held: CheckpointCopy, target: Node, root: str, notify: Notify) -> None:
    """Copy `held` from `source` to the folder `root` on `target`, replacing a folder of the same name.

    RunFailedError: the source is damaged, with its node. Other errors are the target's. An incomplete copy is removed.
    """
    needed = str(held.size // 1024 + SPARE_KIB)
    begun = target.run(["sh", "-c", _BEGIN, "sh", root, needed, secrets.token_hex(4)])
    hint = f"{held.size / 1e6:.0f} MB are needed: orch checkpoints prune" if begun.exit_code == FULL else ""
    aside = begun.check(f"making room for {held.name}", hint=hint).strip()
    try:
        done = 0
        for part in held.parts:
            relay = Relay(source, f"{held.folder}/{part.name}", part)
            moving = telling(relay.chunks(), target.name, f"{held.name} from {source.name}", done, held.size, notify)
            argv = ["sh", "-c", _WRITE, "sh", aside, part.name]
            written = target.run(argv, stdin=moving, timeout_s=TRANSFER_TIMEOUT_S)
            relay.check_source()
            written.check(f"writing {part.name} of {held.name}", hint="is the disk full? df -h")
            relay.check_content()  # last: a stream that was not read to its end proves nothing about the source
            done += part.size
        notify(target.name, Progress(text=f"{held.name}: checking what came"))
        sums = "".join(f"{part.sha256}  {part.name}\n" for part in held.parts).encode()
        argv = ["sh", "-c", _FINISH, "sh", aside, held.name]
        hint = "try again; if it fails twice, check the disk and the memory of the node"
        target.run(argv, stdin=sums, timeout_s=TRANSFER_TIMEOUT_S).check(f"finishing {held.name}", hint=hint)
    except BaseException:  # Ctrl-C too
        with suppress(OrchError):
            target.run(["rm", "-rf", "--", aside])
        raise


class Relay:
    """One file streamed from a node: cut at its expected size and hashed on the way.

    An error at the source ends the stream and is kept for `check_source`: the stream is read by another node's thread.
    """

    def __init__(
        self,
        node: Node,
        path: str,
        part: CheckpointFile,
        *,
        argv: Sequence[str] = (),
        refused: Callable[[bytes], str] = lambda _head: "",
    ) -> None:
        """`argv` writes the file to its stdout (default: `cat`); `refused`: reason not to send a file that begins with
        these bytes, empty: there is none."""
        self._node, self._path, self._part = node, path, part
        self._argv, self._refused = argv or ["cat", "--", path], refused
        self._hash, self._size = hashlib.sha256(), 0
        self._error: OrchError | None = None

    def chunks(self) -> Iterator[bytes]:
        try:
            for chunk in self._node.stream(self._argv):
                if not self._size and (problem := self._refused(chunk[:HEAD_BYTES])):
                    self._error = RunFailedError(f"{self._path}: {problem}", node=self._node.name)
                    return
                self._size += len(chunk)
                if self._size > self._part.size:
                    return
                self._hash.update(chunk)
                yield chunk
        except OrchError as error:
            self._error = error

    def check_source(self) -> None:
        """Raise the error that ended the stream at its source."""
        if isinstance(self._error, CommandFailedError):  # it may have been removed: newer ones push older ones out
            raise RunFailedError(f"{self._path} cannot be read: {self._error.message}", node=self._node.name)
        if self._error:
            raise self._error

    @property
    def is_complete(self) -> bool:
        """True if size and hash are the expected ones."""
        return self._size == self._part.size and self._hash.hexdigest() == self._part.sha256

    def check_content(self) -> None:
        """RunFailedError: size or hash differ from the manifest."""
        if not self.is_complete:
            raise RunFailedError(
                f"{self._path} is not what its manifest says: it is damaged, and was not copied",
                node=self._node.name,
                hint="orch checkpoints verify",
            )


def telling(chunks: Iterator[bytes], node: str, what: str, before: int, total: int, notify: Notify) -> Iterator[bytes]:
    """The same chunks; after each, report to `notify` how many of `total` bytes were sent, `before` of them earlier."""
    for chunk in chunks:
        yield chunk
        before += len(chunk)
        notify(node, Progress(text=what, done=before, total=total))


# A constant; $1: the run's folder of checkpoints, which may begin with ~. What it holds comes on stdin.
_MARK = """
umask 077
root=$1
case $root in "~"*) root=$HOME${root#"~"};; esac
cd -- "$root/.." && cat > .best.json.new && sync -- .best.json.new 2>/dev/null; mv -- .best.json.new best.json
"""


def best_of(held: Sequence[CheckpointCopy], newest: int) -> CheckpointCopy | None:
    """The checkpoint of one run that best.json names, of several the latest: only a better one follows. None if its
    step is after `newest`, from which the run resumes."""
    named = [one for one in held if one.best and not one.problem and one.step <= newest]
    return max(named, key=lambda one: one.step, default=None)


def copy_best(
    source: Node, best: CheckpointCopy, target: Node, there: Sequence[CheckpointCopy], root: str, notify: Notify
) -> None:
    """Copy `best` to `root` on `target` unless it is `there`, and write best.json. Errors: as of `copy_checkpoint`."""
    same = [one for one in there if one.identity == best.identity and not one.problem]
    if any(one.best for one in same):
        return
    if not same:
        copy_checkpoint(source, best, target, root, notify)
    target.run(["sh", "-c", _MARK, "sh", root], stdin=encode_best(best.step).encode()).check("writing best.json")


REMOVE_S = 120.0

# A constant; the folders are its arguments. Renamed first, so that a half-removed one does not look damaged; not to
# `.tmp-*`, which the trainer removes while it saves, and would fail where two remove at once.
_REMOVE = """
for folder in "$@"; do
  gone=${folder%/*}/.copy-gone-${folder##*/}
  rm -rf -- "$gone"
  [ ! -e "$folder" ] || { mv -T -- "$folder" "$gone" && rm -rf -- "$gone"; } || exit 1
done
"""


def remove(node: Node, held: Sequence[CheckpointCopy]) -> None:
    """Remove these checkpoints of the node, oldest first; a checkpoint that is already gone is not an error."""
    if held:
        folders = [one.folder for one in sorted(held, key=lambda one: one.step)]
        done = node.run(["sh", "-c", _REMOVE, "sh", *folders], timeout_s=REMOVE_S)
        done.check(f"removing {len(folders)} checkpoint{'' if len(folders) == 1 else 's'}")


def remove_all(nodes: Sequence[Node], held: Sequence[CheckpointCopy]) -> tuple[Outcome[Node, None], ...]:
    """Remove these, each from its node; one outcome for each node that had any."""
    holders = [node for node in nodes if any(one.node == node.name for one in held)]
    return fan_out(holders, lambda node: remove(node, [one for one in held if one.node == node.name]))
