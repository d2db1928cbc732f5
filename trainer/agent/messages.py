"""Messages between agents, encoded and decoded here. One that does not fit is a `MisfitError`, with no other effect."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from contract.json_reader import from_json
from contract.rank_signs import MOST_RANKS, RankSigns
from contract.result_files import COPY_LIMIT_BYTES, MAX_FILES, ResultFiles, read_result_files, within_limit
from contract.result_paths import path_problem
from trainer.agent.coordinator import (
    LONGEST_PAUSE_S,
    CopyFiles,
    EndRun,
    Order,
    ReportStacks,
    RestartRanks,
    StartRanks,
)
from trainer.agent.rank_exit import LONGEST, RankExit, from_values
from trainer.agent.status_files import bounded

MAX_GENERATIONS = 1_000_000
MOST = 2**32
"""Bound of any other integer: exit codes, global ranks."""


class MisfitError(ValueError):
    """A line is not a message, or a value is out of bounds."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """No rank runs on this node; the next generation can start."""

    generation: int
    """The last one that this node has seen."""
    results: ResultFiles | None = None
    """Files that ranks have written here; None: they are not compared."""


@dataclass(frozen=True, kw_only=True)
class RanksEnded:
    """The ranks of this node have ended."""

    rank_exit: RankExit


@dataclass(frozen=True, kw_only=True)
class SignsReport:
    """Signs of the ranks of this node, some 200 bytes each, every ten seconds."""

    generation: int
    signs: tuple[RankSigns, ...]


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A heartbeat, in both directions."""


Report = Ready | RanksEnded | SignsReport | Ping


_KINDS: Mapping[type[Report | Order], str] = {
    Ready: "ready", RanksEnded: "ended", SignsReport: "signs", Ping: "ping", StartRanks: "start",
    RestartRanks: "restart", CopyFiles: "copy", EndRun: "end", ReportStacks: "stacks",
}  # fmt: skip
_DEFAULTS = asdict(RankSigns(rank=0))


@dataclass(frozen=True, kw_only=True)
class _Signs:
    signs: tuple[RankSigns, ...]


def as_message(message: Report | Order) -> Mapping[str, Any]:
    if isinstance(message, SignsReport):  # what is as usual goes without saying
        signs = [
            {name: value for name, value in asdict(one).items() if name == "rank" or value != _DEFAULTS[name]}
            for one in message.signs
        ]
        return {_KINDS[SignsReport]: {"generation": message.generation, "signs": signs}}
    return {_KINDS[type(message)]: asdict(message)}


def read_report(line: bytes, names: Collection[str]) -> Report:
    """Decode a message of a node to the coordinator. `names`: the nodes of the run."""
    kind, values = _kind_of(line)
    if kind == "ready":
        results = None if values.get("results") is None else _result_files(values["results"])
        return Ready(generation=whole(values, "generation", most=MAX_GENERATIONS), results=results)
    if kind == "ended":
        return RanksEnded(rank_exit=_rank_exit(values, "rank_exit", names))
    if kind == "signs":
        return _signs_report(values)
    if kind == "ping":
        return Ping()
    raise MisfitError("not a report")


def read_order(
    line: bytes, names: Collection[str]
) -> StartRanks | RestartRanks | CopyFiles | EndRun | ReportStacks | Ping:
    """Decode a message of the coordinator to a node."""
    kind, values = _kind_of(line)
    if kind == "start":
        generation, port = whole(values, "generation", most=MAX_GENERATIONS), whole(values, "port", most=65535)
        return StartRanks(generation=generation, port=port)
    if kind == "restart":
        return RestartRanks(
            generation=whole(values, "generation", most=MAX_GENERATIONS),
            cause=_rank_exit(values, "cause", names),
            restarts_left=whole(values, "restarts_left", least=-1, most=MAX_GENERATIONS),
            pause_s=_seconds(values, "pause_s"),
        )
    if kind == "copy":
        files = _result_files({"files": values.get("files")}).files
        if not within_limit(files):
            raise MisfitError(f"files of more than {COPY_LIMIT_BYTES} bytes")
        node_rank = whole(values, "node_rank", least=1, most=len(names) - 1)
        return CopyFiles(node_rank=node_rank, files=files, upload=values.get("upload") is True)
    if kind == "end":
        return EndRun(rank_exit=_rank_exit(values, "rank_exit", names))
    if kind == "stacks":
        return ReportStacks()
    if kind == "ping":
        return Ping()
    raise MisfitError("not an order")


def _signs_report(values: Mapping[str, Any]) -> SignsReport:
    generation = whole(values, "generation", most=MAX_GENERATIONS)
    try:
        signs = from_json(_Signs, values, most=MOST_RANKS).signs
        return SignsReport(generation=generation, signs=tuple(map(bounded, signs)))
    except ValueError as error:
        raise MisfitError(f"not the signs of ranks: {error}"[:200]) from None


def values_of(line: bytes) -> dict[str, Any]:
    """Decode a JSON object."""
    try:
        values = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"not JSON: {error}"[:200]) from None
    if not isinstance(values, dict):
        raise MisfitError("not a JSON object")
    return values


def whole(values: Mapping[str, Any], key: str, *, most: int, least: int = 0) -> int:
    number = values.get(key)
    if type(number) is not int or not least <= number <= most:
        raise MisfitError(f"{key} is not an integer from {least} to {most}")
    return number


def read_paths(values: Mapping[str, Any], key: str) -> list[str]:
    """Decode paths of result files. MisfitError: one is of a file that is never copied."""
    paths = values.get(key)
    if not isinstance(paths, list) or len(paths) > MAX_FILES:
        raise MisfitError(f"{key} is not a list of files")
    if any(not isinstance(path, str) or path_problem(path) for path in paths):
        raise MisfitError(f"{key} has a file that is never copied")
    return paths


def _result_files(values: Any) -> ResultFiles:
    try:
        return read_result_files(values)
    except ValueError as error:
        raise MisfitError(str(error)[:200]) from None


def _kind_of(line: bytes) -> tuple[str, Mapping[str, Any]]:
    values = values_of(line)
    if len(values) != 1:
        raise MisfitError("not one kind of message")
    ((kind, inner),) = values.items()
    if not isinstance(inner, dict):
        raise MisfitError("no values")
    return kind, inner


def _seconds(values: Mapping[str, Any], key: str) -> float:
    number = values.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= LONGEST_PAUSE_S:
        raise MisfitError(f"{key} is not a time in seconds")
    return float(number)


def _rank_exit(values: Mapping[str, Any], key: str, names: Collection[str]) -> RankExit:
    """Each field of its type, whole numbers and texts within bounds, the node one of the run's."""
    inner = values.get(key)
    if not isinstance(inner, dict):
        raise MisfitError(f"{key} is not a rank exit")
    hints = get_type_hints(RankExit)
    names_of_fields = [field.name for field in fields(RankExit) if field.name in inner]
    wrong = [name for name in names_of_fields if not _fits(inner[name], hints[name])]
    if wrong or "outcome" not in inner or inner.get("node") not in names:
        raise MisfitError(f"{key} is not a rank exit of a node of this run")
    return from_values(inner)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kinds = get_args(hint) or (hint,)
    if type(value) not in kinds:
        return False
    if isinstance(value, str):
        return len(value) <= LONGEST
    return not isinstance(value, int) or -MOST <= value <= MOST


def _no_number(name: str) -> None:
    raise MisfitError(f"{name} is not a JSON number")
