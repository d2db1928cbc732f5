"""`orch plan` and `orch launch --nodes auto`: the cost model's answer for the newest measurement."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from contract.cost_model.capacity import CapacityPlan, Query, node_of, plan_capacity
from contract.cost_model.choice import AUTO
from contract.cost_model.measurement import CostModelError
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.measure import measure
from orchestrator.cli.options import Output, OutputMode
from orchestrator.cli.report import say
from orchestrator.fleet.planning.request import chosen_nodes, with_engine
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.measurement import SavedMeasurement, core, option
from orchestrator.specs.program import ACCUMULATION, STEP
from orchestrator.store.measurements import recall


@dataclass(frozen=True, kw_only=True)
class Length:
    """Length of a training in at most one of these units."""

    steps: int | None = None
    epochs: float | None = None
    samples: int | None = None

    def in_samples(self, measurement: SavedMeasurement, samples_per_step: int) -> int | None:
        """Return the length in samples; without one, that of the workload's `--max-steps` or `--epochs`."""
        given = [value for value in (self.steps, self.epochs, self.samples) if value is not None]
        if len(given) > 1:
            raise UsageError("give only one of --steps, --epochs and --samples")
        steps = self.steps or (None if given else _number(option(measurement.command, "--max-steps")))
        epochs = self.epochs or (None if given or steps else _number(option(measurement.command, "--epochs")))
        if steps:
            return int(steps * samples_per_step)
        if epochs:
            return int(epochs * measurement.measured.samples_per_epoch) or None
        return self.samples


def show_capacity(
    inventory: Inventory, options: LaunchOptions, length: Length, output: Output, *, measures: bool
) -> int:
    """Show on which nodes the training is fastest and how long it takes."""
    measurement = measured_before(inventory, options)
    if measures:
        measurement = measure(inventory, options, quiet=output.as_json)
    if measurement is None:
        words = shlex.join(core(options.program.words))
        nodes = f" --nodes {options.nodes}" if options.nodes else ""
        raise ConfigError(
            f"{words} was not measured yet on {', '.join(_names(inventory, options))}",
            hint=f"orch bench{nodes} -- {words}   (or orch plan --measure)",
        )
    capacity = capacity_of(measurement, inventory, options, length)
    from orchestrator.render.forecast import capacity_view

    data = {"measured_at": measurement.time, "command": measurement.command, **asdict(capacity)}
    data["finish_s"] = capacity.finish_s(capacity.chosen)
    output.write(data, capacity.chosen.nodes, capacity_view(capacity, wide=output.wide))
    if output.is_table:
        say(f"measured {measurement.time} on {', '.join(measurement.nodes)}; measure again: --measure")
    return EXIT_OK


def measured_before(inventory: Inventory, options: LaunchOptions) -> SavedMeasurement | None:
    """Return the newest saved measurement of this workload and these nodes."""
    options.program.measuring()  # refuse the user's own script, which cannot be measured
    must_run("orch plan", options)
    return recall(inventory.project, options.program.words, _names(inventory, options))


def capacity_of(
    measurement: SavedMeasurement, inventory: Inventory, options: LaunchOptions, length: Length
) -> CapacityPlan:
    """Return the prediction for the chosen nodes, which were measured, and the words of this command line."""
    command, names = options.program.words, _names(inventory, options)
    measurement = replace(measurement, command=command)
    step = samples_per_step(measurement, names)
    query = Query(
        sync=option(command, "--sync") or AUTO,
        equal=option(command, "--shares") == "equal" or "--deterministic" in command,
        among=names,
        samples_per_step=step,
        samples=length.in_samples(measurement, step),
    )
    try:
        return plan_capacity(measurement.measured, query)
    except CostModelError as error:
        raise UsageError(str(error)) from error


def samples_per_step(measurement: SavedMeasurement, names: tuple[str, ...]) -> int:
    """Return the samples per step on these nodes: --global-batch-size, or the batches of their ranks."""
    measured = measurement.measured
    if option(measurement.command, "--global-batch-size"):
        return measured.samples_per_step
    ranks = sum(node_of(node.node, names) in names for node in measured.nodes)
    return max(ranks, measured.samples_per_step * ranks // len(measured.nodes))


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
    command = options.program.words
    if len(capacity.chosen.nodes) < len(capacity.members):  # a fixed batch per rank would make a step of fewer samples
        if option(command, *ACCUMULATION) and not option(command, *STEP):
            say("  note: with --grad-accum, fewer nodes make a step of fewer samples; --global-batch-size keeps them")
        else:
            command = options.program.with_step(capacity.samples_per_step)
    chosen = capacity.chosen_nodes(measurement.nodes)
    _say_choice(capacity, chosen, measurement.time)
    return replace(options, nodes=",".join(chosen), command=command)


def _say_choice(capacity: CapacityPlan, chosen: Sequence[str], measured_at: str) -> None:
    way = capacity.chosen
    speed = f"{way.per_s:,.0f} {capacity.unit}/s"
    over = "" if len(way.nodes) == 1 else f", {way.speedup:.1f} x {capacity.alone.nodes[0]} alone"
    say(f"--nodes auto: {', '.join(chosen)} ({way.sync}): {speed}{over}; measured {measured_at}")
    for one in capacity.members:
        if not one.taken:
            times = f"a step takes {one.without_s:.3g} s without it, {one.with_s:.3g} s with it"
            say(f"  without {one.node}, which {one.effect}: {times}")


def _names(inventory: Inventory, options: LaunchOptions) -> tuple[str, ...]:
    return tuple(spec.name for spec in chosen_nodes(with_engine(inventory, options.engine), options, None))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # the trainer refuses it before a launch
