"""The functions that turn text into data, found in the source, and those of them that the fuzzer runs."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import CodeType, FrameType

from benchmarks.fuzz.mutate import mutated
from benchmarks.fuzz.reader import Reader
from benchmarks.fuzz.readers import ROOT

PACKAGES = ("contract", "orchestrator")
DECODERS = frozenset((
    "json.load", "json.loads", "tarfile.open", "struct.unpack", "zlib.decompress", "tomllib.loads", "pickle.loads",
    "read_yaml", "ast.literal_eval", "ElementTree.fromstring", "datetime.fromisoformat",
))  # fmt: skip
"""Calls that turn text or bytes into data."""
_NAME = re.compile(r"(?:parse|decode|read|from|received)(?:_\w+)?")
_TEXTS = frozenset((
    "str", "bytes", "str | bytes", "Completed", "Iterable[bytes]", "Iterable[str]", "Iterator[bytes]", "Sequence[str]",
))  # fmt: skip
"""Types of a parameter with which a public function of such a name is a reader."""


def reading_functions() -> set[str]:
    """`FILE:FUNCTION` of each function that calls a decoder, or is named for one and takes a text."""
    return {
        f"{path.relative_to(ROOT)}:{name}"
        for package in PACKAGES
        for path in ROOT.glob(f"{package}/**/*.py")
        for name, function in _functions(ast.parse(path.read_text("utf-8")), "")
        if _decodes(function) or _is_named_for_it(function)
    }


def functions_run(readers: Mapping[str, Reader]) -> set[str]:
    """`FILE:FUNCTION` of each function of `PACKAGES` that these readers run, on valid texts and some mutations."""
    codes = set[CodeType]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    random = Random(1)  # noqa: S311  # texts, no secrets
    for reader in readers.values():
        for text in (*reader.texts, *(mutated(random.choice(reader.texts), random) for _ in range(5))):
            threading.setprofile(note)
            sys.setprofile(note)
            try:
                reader.read(text)
            except reader.declared:
                continue
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    own = {code: Path(code.co_filename) for code in codes if Path(code.co_filename).is_relative_to(ROOT)}
    return {f"{path.relative_to(ROOT)}:{code.co_qualname.replace('.<locals>', '')}" for code, path in own.items()}


def _functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        inner = f"{outer}{child.name}." if isinstance(child, ast.FunctionDef | ast.ClassDef) else outer
        if isinstance(child, ast.FunctionDef):
            yield inner.removesuffix("."), child
        yield from _functions(child, inner)


def _decodes(function: ast.FunctionDef) -> bool:
    """Return whether its own lines call a decoder, not those of a function inside it."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in DECODERS:
            return True
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            left += ast.iter_child_nodes(node)
    return False


def _is_named_for_it(function: ast.FunctionDef) -> bool:
    given = {ast.unparse(one.annotation) for one in function.args.args if one.annotation}
    return bool(_NAME.fullmatch(function.name)) and bool(given & _TEXTS)


NOT_FUZZED: Mapping[str, Sequence[str]] = {
    "a word or a file of the person who calls orch": (
        "contract/downloads.py:read_source", "orchestrator/cli/moments.py:moment",
        "orchestrator/plan/launchers.py:_one_of.read", "orchestrator/plan/requirement_lines.py:read_line",
        "orchestrator/specs/data.py:read_data_options", "orchestrator/fleet/images/build_context.py:_toml",
        "orchestrator/specs/inventory_files/ansible_vars.py:variables_beside",
    ),
    "a file that orch itself has written on this computer": (
        "orchestrator/cli/completion.py:_inventory", "orchestrator/fleet/planning/request.py:_divided",
        "orchestrator/fleet/runs/known_sums.py:_load", "orchestrator/fleet/runs/send_data.py:part_of_data",
        "orchestrator/lab/state.py:load_lab", "orchestrator/nodes/log_stream.py:_entries",
        "orchestrator/nodes/log_stream.py:read_stream", "orchestrator/nodes/processes/files.py:read_json",
        "orchestrator/store/measurements.py:recall", "orchestrator/store/run_record.py:RunRecord.forecast",
        "orchestrator/store/run_record.py:RunRecord.plan_values", "orchestrator/store/segments.py:Segment.text_size",
        "orchestrator/watch/server/runs.py:_HeldRun.view",
    ),
    "a part of the installation, or the answer of a program on this computer": (
        "orchestrator/cli/completion.py:workload_names", "orchestrator/fleet/planning/look_ahead.py:look_ahead",
        "orchestrator/watch/server/actions.py:PageActions._keep_findings",
    ),
    "it runs on a node, where it reads what that node has written": ("contract/data_check.py:_read_json",),
    "it writes an archive": (
        "orchestrator/fleet/images/base_image.py:_import_packages",
        "orchestrator/fleet/images/build_context.py:archive_of", "orchestrator/fleet/images/build_context.py:packed",
        "orchestrator/lab/image.py:_context", "orchestrator/lab/node.py:_archive",
    ),
    "the lab runs on this computer": (
        "orchestrator/lab/network.py:parse_rate", "orchestrator/lab/network.py:parse_routes",
        "orchestrator/lab/node.py:SimulatedNode.look",
    ),
    "what it is given was read by another reader, or it passes text on as it is": (
        "orchestrator/fleet/runs/find_runs.py:_started", "orchestrator/fleet/runs/load_plan.py:_newest_on.read",
        "orchestrator/fleet/images/build_output.py:BuildOutput.read",
        "orchestrator/nodes/slurm.py:SlurmCarrier.read_log",
    ),
}  # fmt: skip
"""Readers that no text of another machine reaches, by the reason."""
