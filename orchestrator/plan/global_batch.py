"""A step of the training keeps its samples, however many nodes take part: fewer of them each do more."""

from __future__ import annotations

from orchestrator.plan.command import is_own_script
from orchestrator.specs.measurement import option

STEP, ACCUMULATION = ("--global-batch-size",), ("--grad-accum", "--gradient-accumulation-steps")


def same_step(command: tuple[str, ...], samples_per_step: int | None) -> tuple[str, ...]:
    """With the step said as a whole: one of so much a rank would shrink with the nodes, and train otherwise.

    A script of the user's, and a command that says its step, stay as they are; so does all where nobody knows it.
    """
    if not samples_per_step or is_own_script(command) or option(command, *STEP):
        return command
    return (*_without(command, ACCUMULATION), STEP[0], str(samples_per_step))


def _without(command: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """So many micro-batches a rank would say another step."""
    kept, words = [], list(command)
    while words:
        name, equals, _ = (word := words.pop(0)).partition("=")
        if name not in names:
            kept.append(word)
        elif not equals and words:
            words.pop(0)
    return tuple(kept)
