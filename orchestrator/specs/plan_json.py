"""The plan as JSON: what `--json` prints, and what every node keeps in the folder of the run.

Values of variables with a name of a secret are left out: others may read a plan.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from contract import json_reader
from orchestrator.specs.data import DATA_NAME, MOST_FOLDERS, is_possible_place
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.labels import LONGEST_NAME, MOST_ATTEMPTS, MOST_NODES, NODE_NAME
from orchestrator.specs.launch_options import NUMBERS, SYNC_OUTPUTS
from orchestrator.specs.plan import Plan
from orchestrator.specs.run import RUN_ID
from orchestrator.specs.secret import NAME, redacted


def to_data(plan: Plan) -> dict[str, Any]:
    """Return plain dictionaries and lists; `secrets` is left out if the run has none."""
    data: dict[str, Any] = redacted(dataclasses.asdict(plan))
    return {key: value for key, value in data.items() if key != "secrets" or value}


def to_json(plan: Plan) -> str:
    return json.dumps(to_data(plan), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, where: str) -> Plan:
    """Return the plan of a file. ConfigError: not a plan; `where` names the file.

    Not by pydantic, whose reader takes 70 ms to be made, in each command about a run.
    """
    try:
        plan = json_reader.from_json(Plan, _loaded(text), most=MOST_ITEMS)
    except (ValueError, RecursionError) as error:
        raise _no_plan(where, [str(error)]) from error
    if problems := list(_problems(plan)):
        raise _no_plan(where, problems)
    return plan


def _loaded(text: str) -> Any:
    """ValueError: no JSON, or with half a pair of surrogates, which no file and no terminal takes."""
    values = json.loads(text)
    if "\\u" in text:
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _problems(plan: Plan) -> Iterator[str]:
    """Yield values that no valid plan has. The text may be a node's: names become folders, numbers become loops."""
    if not re.fullmatch(RUN_ID, plan.run_id):
        yield f"run_id: {plan.run_id!r} is no id"
    if not re.fullmatch(r"([0-9a-f]{16})?", plan.code_digest):
        yield f"code_digest: {plan.code_digest!r} is no digest"
    yield from _problems_of_data(plan)
    if len(plan.cluster) > LONGEST_NAME or (plan.cluster and not re.fullmatch(NODE_NAME, plan.cluster)):
        yield f"cluster: {plan.cluster[:40]!r} is no name of a cluster"
    if plan.sync_outputs not in SYNC_OUTPUTS:
        yield f"sync_outputs: expected {', '.join(SYNC_OUTPUTS)}"
    if not re.fullmatch(r"[0-9a-z-]{0,64}", plan.claim):
        yield f"claim: {plan.claim[:40]!r} is no id"
    if plan.resumes and not re.fullmatch(r"[0-9a-f]{64}", plan.resumes.sha256):
        yield f"resumes: {plan.resumes.sha256[:40]!r} is no hash"
    if len(plan.user) > LONGEST_NAME:
        yield f"user: longer than {LONGEST_NAME} characters"
    if not 1 <= len(plan.nodes) <= MOST_NODES or len({part.node for part in plan.nodes}) != len(plan.nodes):
        yield f"nodes: expected 1 to {MOST_NODES}, each once"
    for part in plan.nodes:
        if not (0 <= part.node_rank < MOST_NODES and 1 <= part.nproc_per_node <= MOST_RANKS):
            yield f"nodes: {part.node!r} has node_rank {part.node_rank} and {part.nproc_per_node} processes"
    for secret in plan.secrets:
        if not NAME.fullmatch(secret.name):
            yield f"secrets: {secret.name!r} is no name of a secret"
    for name, most in _MOST.items():
        if not 0 <= (number := getattr(plan, name)) <= most:
            yield f"{name}: {number} is not from 0 to {most}"


def _problems_of_data(plan: Plan) -> Iterator[str]:
    if len(plan.data) > MOST_FOLDERS or len({one.name.upper() for one in plan.data}) != len(plan.data):
        yield f"data: expected at most {MOST_FOLDERS}, each with a name of its own"
    for one in plan.data:
        if not (re.fullmatch(DATA_NAME, one.name) and re.fullmatch(r"[0-9a-f]{16}", one.digest)):
            yield f"data: {one.name!r} {one.digest!r} is no name with a digest"
        if len(one.places) > MOST_FOLDERS or not all(map(is_possible_place, one.places)):
            yield f"data: places of {one.name!r}: no data can be there"
        if one.parts and not ({part.node for part in plan.nodes} <= set(one.parts)):
            yield f"data: parts of {one.name!r}: lacks a node"
        if len(one.parts) > MOST_NODES:
            yield f"data: parts of {one.name!r}: more than {MOST_NODES}"


MOST_ITEMS = 100_000
"""Items of a list: a command may have many words."""
MOST_RANKS = 1024
"""Processes of one node."""
_MOST = {
    "attempt": MOST_ATTEMPTS,
    "nnodes": MOST_NODES,
    "world_size": MOST_NODES * MOST_RANKS,
    "master_port": 65535,
    "supervisor_port": 65535,
    **{name: flag.most for name, flag in NUMBERS.items()},
}
SHOWN = 20
"""Problems of one file that are listed."""


def _no_plan(where: str, problems: Sequence[str]) -> ConfigError:
    more = [f"… and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return ConfigError(f"{where} is not a plan of this version", problems=[*problems[:SHOWN], *more])
