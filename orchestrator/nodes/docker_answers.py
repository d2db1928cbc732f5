"""What a Docker Engine answers, as our own facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.run import ContainerFacts


def image_facts(answer: Mapping[str, Any]) -> ImageFacts:
    return ImageFacts(
        id=answer["Id"],
        tags=tuple(sorted(answer.get("RepoTags") or ())),
        layers=tuple((answer.get("RootFS") or {}).get("Layers") or ()),
        labels=dict((answer.get("Config") or {}).get("Labels") or {}),
        size_bytes=answer.get("Size", 0),
        architecture=answer.get("Architecture", ""),
    )


def container_facts(answer: Mapping[str, Any]) -> ContainerFacts:
    state = answer["State"]
    ended = state["Status"] in ("exited", "dead")
    return ContainerFacts(
        id=answer["Id"],
        name=answer["Name"].lstrip("/"),
        image=answer["Image"],
        labels=dict(answer["Config"].get("Labels") or {}),
        status=state["Status"],
        exit_code=state["ExitCode"] if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        started_at=_time(state["StartedAt"]),
        finished_at=_time(state["FinishedAt"]),
        error=state.get("Error", ""),
        restarts=answer.get("RestartCount", 0),
    )


def _time(text: str) -> str:
    """Docker writes the year 1 for "never"."""
    return "" if text.startswith("0001-") else text
