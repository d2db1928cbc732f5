"""The launch of a run as one types it, for messages that propose it with a change."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.specs.launch_options import LANGUAGE, OFFLINE
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import is_sensitive
from orchestrator.specs.secret_forms import REDACTED


def launch_words(plan: Plan) -> tuple[str, ...]:
    """The launch of this plan as one types it: nodes, folders, the other options, and the words after `--`."""
    folders = (
        ("--workdir", plan.code_origin if plan.own_code else ""),
        *(("--data", one.typed) for one in plan.data if one.origin),
    )
    given = (word for option, folder in folders if folder for word in (option, folder))
    names = ",".join(part.node for part in plan.nodes)
    where = ("--on", plan.cluster, "--nodes", str(plan.nnodes)) if plan.cluster else ("--nodes", names)
    is_process = not (plan.cluster or plan.one_computer or any(part.container.image for part in plan.nodes))
    name = _OWN_NAME.fullmatch(plan.run_id)
    offline = OFFLINE.items() <= plan.environment.items()
    left_out = {*LANGUAGE, *(OFFLINE if offline else ())}
    of_attempt = _attempt_options(plan)
    is_implied = "--fetch-once" in of_attempt
    variables = {name: value for name, value in plan.environment.items() if name not in left_out}
    shown = {name: REDACTED if is_sensitive(name, value) else value for name, value in variables.items()}
    return (
        "orch",
        "launch",
        *(("--engine", "process") if is_process else ()),
        *where,
        *(("--name", name[1]) if name else ()),
        *given,
        *(("--shard",) if any(one.parts for one in plan.data) else ()),
        *(("--offline",) if offline and not is_implied else ()),
        *of_attempt,
        *replace(plan, environment=shown).words(),
        "--",
        *plan.command,
    )


def _attempt_options(plan: Plan) -> tuple[str, ...]:
    """The options of this attempt alone, as far as a launch on its nodes, or on its cluster, takes them."""
    nodes, words = {part.node for part in plan.nodes}, plan.attempt_options
    taken = (
        (flag, value)
        for flag, value in zip(words[::2], words[1::2], strict=True)
        if flag == "--master-port" or not (plan.cluster or (flag == "--master" and value not in nodes))
    )
    return tuple(word for pair in taken for word in pair)


_OWN_NAME = re.compile(r"(?![0-9]{4}-[0-9]{4}-)(.+)-[0-9a-f]{4}")
"""Id of a run that was named."""
