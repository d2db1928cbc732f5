"""Keep the samples of a step when the number of nodes changes."""

from __future__ import annotations

from orchestrator.plan.command import is_own_script
from orchestrator.specs.measurement import option

STEP, ACCUMULATION = ("--global-batch-size",), ("--grad-accum", "--gradient-accumulation-steps")


def same_step(command: tuple[str, ...], samples_per_step: int | None) -> tuple[str, ...]:
    """Return the command with --global-batch-size: a fixed batch per rank would shrink the step with fewer nodes.

    Unchanged: the user's own script, a command with its own --global-batch-size, any command if the size is unknown.
    """
    if not samples_per_step or is_own_script(command) or option(command, *STEP):
        return command
    return (*_without(command, ACCUMULATION), STEP[0], str(samples_per_step))


def _without(command: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command without these options and their values."""
    kept, words = [], list(command)
    while words:
        name, equals, _ = (word := words.pop(0)).partition("=")
        if name not in names:
            kept.append(word)
        elif not equals and words:
            words.pop(0)
    return tuple(kept)
