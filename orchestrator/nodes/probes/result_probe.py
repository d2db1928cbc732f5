"""Ask a machine which files the ranks of a run have written there: one constant script, every answer is hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.result_files import ResultFile, ResultFiles, bounded
from contract.result_paths import path_problem
from contract.run_folder import CODE_FOLDER, COPIED
from orchestrator.nodes.interface import Node
from orchestrator.specs.numbers import whole

TIMEOUT_S = 30.0
MAX_RECORD_BYTES = 4 * 1024 * 1024

# A constant: $1 the project's folder, $2 the run, $3 the name of the record of copied files, $4 most bytes of it.
# Fields end with a NUL: that record, the time of the newest list of launched files, their names, `//`, and a file each.
# A run with checkpoints continues from these, and is not asked further.
SCRIPT = r"""
LC_ALL=C; export LC_ALL
project=$1
case $project in "~"*) project=$HOME${project#"~"};; esac
cd -- "$project/runs/$2" 2>/dev/null || exit 0
for step in checkpoints/step-*; do [ ! -e "$step" ] || exit 0; done
head -c "$4" -- "$3" 2>/dev/null; printf '\0'
newest=$(ls -t -- code-*.list 2>/dev/null | head -n 1)
[ -z "$newest" ] || stat -c %Y -- "$newest" | tr -d '\n'; printf '\0'
cat -- code-*.list 2>/dev/null; printf '//\0'
find . \( -name '.?*' -o -name __pycache__ -o -path ./checkpoints \) -prune \
  -o -type f ! -perm /111 -printf '%s %T@ %P\0' 2>/dev/null
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    copied: Mapping[str, object]
    launched: frozenset[str]
    launched_at: int
    files: Sequence[str]


def ask(node: Node, *, project: str, run: str) -> ResultFiles:
    """The files that ranks of this run wrote on the node, the newest ones if there are many; none if the run has
    checkpoints. `project`: its folder there, which may begin with `~`."""
    argv = ["sh", "-c", SCRIPT, "sh", project, run, COPIED, str(MAX_RECORD_BYTES)]
    return parse(node.run(argv, timeout_s=TIMEOUT_S).check("asking for files of the run"))


def parse(text: str) -> ResultFiles:
    """The script's fields. A file that is never copied, or a field that is not understood, is left out."""
    answer = _read(text)
    return bounded([file for line in answer.files if (file := _file(line, answer))])


def _read(text: str) -> _Answer:
    copied, _, rest = text.partition("\0")
    at, _, rest = rest.partition("\0")
    names, _, files = rest.partition("//\0")
    try:
        record = json.loads(copied) if copied else {}
    except (ValueError, RecursionError):
        record = {}
    return _Answer(
        copied=record if isinstance(record, dict) else {},
        launched=frozenset(name.removeprefix("./") for name in names.split("\0")),
        launched_at=whole(at) or 0,
        files=files.split("\0"),
    )


def _file(line: str, answer: _Answer) -> ResultFile | None:
    size, _, rest = line.partition(" ")
    time, _, path = rest.partition(" ")
    seconds, _, fraction = time.partition(".")
    bytes_, second, micro = whole(size), whole(seconds), whole(fraction[:6].ljust(6, "0"))
    if bytes_ is None or second is None or micro is None or path_problem(path):
        return None
    launched = path.removeprefix(f"{CODE_FOLDER}/") in answer.launched
    if launched and second <= answer.launched_at:
        return None
    modified_us = second * 1_000_000 + micro
    is_copy = answer.copied.get(path) == [bytes_, modified_us]
    return ResultFile(path=path, size=bytes_, modified_us=modified_us, copied=is_copy, launched=launched)
