"""Ask a machine which checkpoints it holds: one constant script, one round trip, every answer taken as hostile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from contract.checkpoint import (
    FILES_LIMIT,
    MANIFEST,
    MANIFEST_LIMIT,
    CheckpointFile,
    decode_best,
    decode_manifest,
    folder_name,
    step_of,
)
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.checkpoint import CheckpointCopy, is_run_id
from orchestrator.specs.numbers import whole

TIMEOUT_S = 30.0

# A constant: $1 the project's folder, $2 how the run's id begins (empty: all), $3 most bytes of a manifest.
# A manifest goes into one line: raw line breaks mean nothing in JSON. Names that could break a line are left out, and
# links are none of the trainer's making. A checkpoint whose replacement a kill has cut short gets its name back.
SCRIPT = r"""
LC_ALL=C; export LC_ALL
project=$1
case $project in "~"*) project=$HOME${project#"~"};; esac
say() { printf '%s=%s\n' "$1" "$2"; }
one_line() { head -c "$2" <"$1" | tr -d '\n\r\000'; }
say now "$(date +%s)"
for root in "$project/runs/$2"*/checkpoints; do
  run=${root%/checkpoints}; id=${run##*/}
  case $id in *[!A-Za-z0-9._-]*) continue;; esac
  [ -d "$root" ] || continue
  for old in "$root"/.tmp-old-step-*; do
    name=${old##*/.tmp-old-}
    case $name in *[!a-z0-9-]*) continue;; esac
    [ -d "$old" ] && [ ! -L "$old" ] && [ ! -e "$root/$name" ] && mv -T -- "$old" "$root/$name" 2>/dev/null
  done
  say run "$run"
  [ -f "$run/best.json" ] && say best "$(one_line "$run/best.json" 4096)"
  for step in "$root"/step-*; do
    case ${step##*/} in *[!a-z0-9-]*) continue;; esac
    [ -d "$step" ] && [ ! -L "$step" ] || continue
    say step "${step##*/}"
    for file in "$step"/*; do
      case ${file##*/} in *[!A-Za-z0-9._-]*) continue;; esac
      [ -f "$file" ] && [ ! -L "$file" ] && say file "$(stat -c '%s %Y' "$file") ${file##*/}"
    done
    manifest=$step/manifest.json
    [ -f "$manifest" ] && [ ! -L "$manifest" ] || continue
    sum=$(sha256sum <"$manifest"); say sha256 "${sum%% *}"
    say manifest "$(one_line "$manifest" "$3")"
  done
done
exit 0
"""


@dataclass
class _Found:
    """Lines of the script about one folder, as far as they are read."""

    run: str
    step: int
    sizes: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    manifest: str = ""
    sha256: str = ""


def ask(node: Node, *, project: str, run: str = "") -> tuple[CheckpointCopy, ...]:
    """The checkpoints under this folder of a project (which may begin with `~`), of runs whose id begins with `run`."""
    argv = ["sh", "-c", SCRIPT, "sh", project, run, str(MANIFEST_LIMIT)]
    text = node.run(argv, timeout_s=TIMEOUT_S).check("asking for checkpoints")
    return tuple(parse(text, node=node.name))


def parse(text: str, *, node: str) -> Iterator[CheckpointCopy]:
    """The script's lines. A line that is not understood is left out, and what lacks a line is not believed."""
    now, best, found = 0, dict[str, str](), list[_Found]()
    run, step = "", None
    for line in text.split("\n"):  # not splitlines: a manifest may hold U+2028
        key, _, value = line.partition("=")
        if key == "now":
            now = whole(value) or 0
        elif key == "run":
            run, step = value if is_run_id(PurePosixPath(value).name) else "", None
        elif key == "best":
            best[run] = decode_best(value)
        elif key == "step":
            step = step_of(value) if run else None
            if step is not None:
                found.append(_Found(run=run, step=step))
        elif step is not None:
            _note(found[-1], key, value)
    for one in found:
        held = _judged(one, node, now)
        yield replace(held, best=best.get(one.run) == held.name)


def hashed(node: Node, held: CheckpointCopy) -> CheckpointCopy:
    """The same, each file's content compared with its manifest. One that has a problem already is left at that."""
    if held.problem:
        return held
    files = [f"{held.folder}/{part.name}" for part in held.parts]
    answer = node.run(["sha256sum", "--", *files], timeout_s=TRANSFER_TIMEOUT_S)
    hashes = {PurePosixPath(name.strip()).name: digest for digest, _, name in map(_parted, answer.stdout.split("\n"))}
    problem = next(filter(None, (part.wrong_content(hashes.get(part.name)) for part in held.parts)), "")
    return replace(held, problem=problem, hashed=True)


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition("  ")


def _note(found: _Found, key: str, value: str) -> None:
    if key == "file":
        size, _, rest = value.partition(" ")
        written, _, name = rest.partition(" ")
        bytes_, second = whole(size), whole(written)
        if bytes_ is not None and second is not None and len(found.sizes) < FILES_LIMIT:
            found.sizes[name], found.written[name] = bytes_, second
    elif key == "sha256":
        found.sha256 = value
    elif key == "manifest":
        found.manifest = value


def _judged(found: _Found, node: str, now: int) -> CheckpointCopy:
    parts, problem = _parts(found)
    run = PurePosixPath(found.run)
    return CheckpointCopy(
        node=node,
        run_id=run.name,
        step=found.step,
        folder=str(run / "checkpoints" / folder_name(found.step)),
        age_s=float(max(0, now - found.written.get(MANIFEST, now))),
        parts=parts,
        problem=problem,
    )


def _parts(found: _Found) -> tuple[tuple[CheckpointFile, ...], str]:
    """Its files with the manifest, which vouches for the others, as the last; and what is wrong."""
    size = found.sizes.get(MANIFEST)
    if size is None:
        return (), f"{MANIFEST} is missing"
    if size > MANIFEST_LIMIT:
        return (), f"{MANIFEST} has {size} bytes, more than {MANIFEST_LIMIT}"
    try:
        promised = decode_manifest(found.manifest, step=found.step).files
    except ValueError as error:
        return (), str(error)
    problem = next(filter(None, (part.wrong_size(found.sizes.get(part.name)) for part in promised)), "")
    return (*promised, CheckpointFile(name=MANIFEST, size=size, sha256=found.sha256)), problem
