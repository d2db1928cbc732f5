"""`orch launch --nodes auto`: choose the best nodes for this workload, and measure first if necessary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from contract.cost_model.capacity import CapacityPlan
from orchestrator.cli.launching.capacity import Length, capacity_of, measured_before
from orchestrator.cli.launching.measure import measure
from orchestrator.cli.options import OutputMode
from orchestrator.cli.report import say
from orchestrator.plan.global_batch import ACCUMULATION, STEP, same_step
from orchestrator.specs.errors import ConfigError, UsageError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import DEFAULT_COMMAND, LaunchOptions
from orchestrator.specs.measurement import option


def with_best_nodes(inventory: Inventory, options: LaunchOptions, mode: OutputMode) -> LaunchOptions:
    """Return the options with the chosen nodes, and print the reasons. With fewer nodes a step keeps its samples."""
    if options.resume or mode.forecast:
        other = "--resume" if options.resume else "--forecast"
        raise UsageError(
            f"--nodes auto chooses nodes for a new run: it does not go with {other}",
            hint="a resumed run has the nodes that it had, or those of --nodes; what is best: orch plan",
        )
    everyone = replace(options, nodes=None)
    measurement = measured_before(inventory, everyone)
    if measurement is None:
        if mode.dry_run:
            raise ConfigError("--nodes auto: this workload was not measured yet", hint="orch bench -- …, then again")
        say("--nodes auto: this workload was not measured yet; measuring now")
        measurement = measure(inventory, replace(everyone, name="bench"), quiet=mode.as_json)
    capacity = capacity_of(measurement, inventory, everyone, Length())
    command = _same_step(options.command or DEFAULT_COMMAND, capacity)
    chosen = capacity.chosen_nodes(measurement.nodes)
    _tell(capacity, chosen, measurement.time)
    return replace(options, nodes=",".join(chosen), command=command)


def _same_step(command: tuple[str, ...], capacity: CapacityPlan) -> tuple[str, ...]:
    """Add --global-batch-size: with fewer nodes, a step of a fixed batch per rank would have fewer samples."""
    if len(capacity.chosen.nodes) == len(capacity.members):
        return command
    if option(command, *ACCUMULATION) and not option(command, *STEP):
        say("  note: with --grad-accum, fewer nodes make a step of fewer samples; --global-batch-size keeps them")
        return command
    return same_step(command, capacity.samples_per_step)


def _tell(capacity: CapacityPlan, chosen: Sequence[str], measured_at: str) -> None:
    way = capacity.chosen
    speed = f"{way.per_s:,.0f} {capacity.unit}/s"
    over = "" if len(way.nodes) == 1 else f", {way.speedup:.1f} x {capacity.alone.nodes[0]} alone"
    say(f"--nodes auto: {', '.join(chosen)} ({way.sync}): {speed}{over}; measured {measured_at}")
    for member in capacity.members:
        if not member.taken:
            say(
                f"  without {member.node}, which {member.effect}: a step takes {member.without_s:.3g} s without it,"
                f" {member.with_s:.3g} s with it"
            )
