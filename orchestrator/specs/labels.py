"""Names of the labels of containers and images, and a reader of a run's labels.

It reads with bounds: whoever may use Docker on a node can write any text there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from orchestrator.specs.run import RUN_ID

LABEL_RUN = "orch.run_id"
LABEL_PROJECT = "orch.project"
LABEL_NODE = "orch.node"
LABEL_NODE_RANK = "orch.node_rank"
LABEL_NNODES = "orch.nnodes"
LABEL_FIRST_RANK = "orch.first_rank"
LABEL_NPROC = "orch.nproc_per_node"
LABEL_ATTEMPT = "orch.attempt"
LABEL_CLAIM = "orch.claim"
"""Id of the claim of the attempt: of two attempts with one number, it tells which one a container is of."""
LABEL_USER = "orch.user"
LABEL_STARTED = "orch.started_at"
LABEL_COMMAND = "orch.command"
LABEL_BACKEND = "orch.backend"
LABEL_MASTER = "orch.master"
LABEL_SECRETS = "orch.secrets"
"""The folder of the node where this container's secrets lie; only where it has some."""

LABEL_PURPOSE = "orch.purpose"
"""Label of a container that belongs to no run: prepare, export."""

LABEL_CONTENT = "orch.content"
LABEL_ADDITIONS = "orch.additions"
"""Hash of the project's own packages in it; empty where it has none."""
LABEL_PROFILE = "orch.profile"
LABEL_TORCH = "orch.torch"
LABEL_CUDA = "orch.cuda"
"""CUDA that its torch was built with."""
LABEL_PYTHON = "orch.python"
LABEL_COMMIT = "orch.git_commit"
LABEL_MODULES = "orch.modules"
"""First names of the modules that it has beside the standard library, separated by spaces."""
PACKAGE_LABELS = {"torch-geometric": "orch.torch_geometric", "torchvision": "orch.torchvision"}
"""Packages that not every image has, each with the label that holds its version, empty where the image lacks it."""

NODE_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
"""Name of a node, of a cluster and of a project."""
MOST_NODES = 4096
MOST_NPROC = 64
MOST_ATTEMPTS = 1_000_000
LONGEST_NAME, LONGEST_COMMAND = 256, 65536


@dataclass(frozen=True, kw_only=True)
class RunLabels:
    """The labels of one container about its run."""

    run_id: str
    attempt: int
    node_rank: int
    nnodes: int | None
    """None where the container does not say it."""
    project: str
    user: str
    started_at: str
    """ISO 8601 with zone; empty where the container does not say it."""
    command: str
    master: str
    claim: str = ""
    """Empty where the container does not say it."""


def read_labels(found: Mapping[str, str], *, latest: datetime | None = None) -> RunLabels:
    """ValueError, in words, for a label that no run of orch has. A run that begins after `latest` is none either."""
    run_id = found.get(LABEL_RUN, "")
    if not re.fullmatch(RUN_ID, run_id):
        raise _unfit(LABEL_RUN, run_id, "the id of a run")
    nnodes = _number(found, LABEL_NNODES, 1, MOST_NODES) if LABEL_NNODES in found else None
    return RunLabels(
        run_id=run_id,
        attempt=_number(found, LABEL_ATTEMPT, 0, MOST_ATTEMPTS),
        node_rank=_number(found, LABEL_NODE_RANK, 0, (nnodes or MOST_NODES) - 1),
        nnodes=nnodes,
        project=_text(found, LABEL_PROJECT, LONGEST_NAME),
        user=_text(found, LABEL_USER, LONGEST_NAME),
        started_at=_time(found, latest),
        command=_text(found, LABEL_COMMAND, LONGEST_COMMAND),
        master=_text(found, LABEL_MASTER, LONGEST_NAME),
        claim=_text(found, LABEL_CLAIM, LONGEST_NAME),
    )


def understood(found: Mapping[str, str]) -> RunLabels | None:
    """None for a container that no run of orch has."""
    try:
        return read_labels(found)
    except ValueError:
        return None


def ranks_of(found: Mapping[str, str]) -> range:
    """Global ranks of a container. ValueError for labels that no run of orch has."""
    first = _number(found, LABEL_FIRST_RANK, 0, MOST_NODES * MOST_NPROC)
    return range(first, first + _number(found, LABEL_NPROC, 0, MOST_NPROC))


def _number(found: Mapping[str, str], label: str, least: int, most: int) -> int:
    text = found.get(label, "0")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise _unfit(label, text, f"a number from {least} to {most}")
    return int(text)


def _text(found: Mapping[str, str], label: str, longest: int) -> str:
    text = found.get(label, "")
    if len(text) > longest:
        raise _unfit(label, text, f"text of at most {longest} characters")
    return text


def _time(found: Mapping[str, str], latest: datetime | None) -> str:
    text = found.get(LABEL_STARTED, "")
    if not text:
        return ""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _unfit(LABEL_STARTED, text, "a time") from None
    if time.tzinfo is None:
        raise _unfit(LABEL_STARTED, text, "a time with its zone")
    if latest and time > latest:
        raise _unfit(LABEL_STARTED, text, "a time that has come")
    return text


def _unfit(label: str, text: str, expected: str) -> ValueError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return ValueError(f"label {label} is {shown!r}, not {expected}")
