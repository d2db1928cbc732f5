"""Figures in Prometheus' text format. The number of series is bounded: by machines, GPUs and running runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from contract.resources import GpuUsage, ResourceUsage
from orchestrator.render.printable import printable
from orchestrator.specs.run import State
from orchestrator.state.fleet_figures import FleetFigures
from orchestrator.state.phase import Phase
from orchestrator.state.progress import progress_of
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import Verdict, verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_RUNS, MOST_GPUS, MOST_CONDITIONS, LABEL_CHARS = 50, 16, 64, 128
"""Active runs, GPUs of a node and conditions of a run that have series; characters of the value of a label."""
MIB = 1024 * 1024

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """All series of one metric."""

    name: str
    help: str
    series: list[tuple[Labels, float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.series:
            inner = ",".join(f'{name}="{_label(text)}"' for name, text in labels)
            yield f"{self.name}{'{' + inner + '}' if inner else ''} {_number(value)}"


class Metrics:
    """Families by name, in the order of their first series."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def add(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Add a series of the metric `orch_NAME`; none where there is no value."""
        if value is not None:
            self._families.setdefault(name, Family(f"orch_{name}", text)).series.append((tuple(labels.items()), value))

    def text(self) -> str:
        return "".join(f"{line}\n" for family in self._families.values() for line in family.lines())


def exposition(figures: FleetFigures) -> str:
    """The figures as one text, as `orch metrics` writes it."""
    metrics = Metrics()
    metrics.add("collect_seconds", "Time that collecting these figures took.", figures.seconds)
    for node in figures.nodes:
        metrics.add("node_up", "Whether the node answers.", float(node not in figures.unreachable), node=node)
    judged = [(state, verdict(state, figures.at)) for state in figures.runs]
    for phase in Phase:
        number = sum(one.phase is phase for _, one in judged)
        metrics.add("runs", "Runs with containers on the nodes, by phase.", number, state=phase.value)
    active = [(state, one) for state, one in judged if one.phase.is_active or one.phase is Phase.LOST]
    for state, one in active[:MOST_RUNS]:
        _add_run(metrics, state, one, figures.at)
    metrics.add("runs_left_out", f"Active runs beyond {MOST_RUNS}.", max(0, len(active) - MOST_RUNS))
    return metrics.text()


def _add_run(metrics: Metrics, state: RunState, judged: Verdict, now: float) -> None:
    run, known = state.run_id, progress_of(state, judged.phase, now)
    of_nodes = state.run
    about = {"project": of_nodes.project, "user": of_nodes.user} if of_nodes else {}
    attempt = "" if state.attempt is None else str(state.attempt)
    about |= {"master": state.master, "attempt": attempt}
    metrics.add("run_info", "An active run, and what is known of it.", 1.0, run=run, **about)
    metrics.add("run_phase", "Phase of the run.", 1.0, run=run, phase=judged.phase.value)
    for node in state.members:
        up = float(node.container is not None and node.container.state is State.RUNNING)
        metrics.add("run_node_running", "Whether the run's container runs.", up, run=run, node=node.name)
    severities = {(one.code.value, one.node): one.severity for one in reversed(judged.conditions)}
    for (code, where), severity in list(severities.items())[:MOST_CONDITIONS]:
        labels = {"code": code, "severity": severity, "node": where}
        metrics.add("run_condition", "A condition that holds: see the documentation.", 1.0, run=run, **labels)
    metrics.add("run_restarts", "Restarts of all ranks in this attempt.", state.restarts, run=run)
    metrics.add("run_step", "Last reported step.", known.step, run=run)
    metrics.add("run_final_step", "Last step of the training.", known.final_step, run=run)
    metrics.add("run_loss", "Loss of that step.", known.loss, run=run)
    metrics.add("run_throughput", "Units per second.", known.per_s, run=run, unit=known.unit)
    metrics.add("run_remaining_seconds", "Estimated time left.", known.remaining_s, run=run)
    metrics.add("run_speed_of_forecast_ratio", "Speed divided by the forecast.", known.of_forecast, run=run)
    metrics.add("run_reported_timestamp_seconds", "Time of that report.", known.at, run=run)
    for node in state.members:
        if node.usage:
            _add_resources(metrics, node.usage, run, node.name)


def _add_resources(metrics: Metrics, usage: ResourceUsage, run: str, node: str) -> None:
    def add(name: str, text: str, value: float | None, scale: float = 1.0) -> None:
        metrics.add(f"node_{name}", text, None if value is None else value * scale, run=run, node=node)

    add("cpu_ratio", "CPU in use, of all that the run may use.", usage.cpu_percent, 0.01)
    add("memory_used_bytes", "Memory in use.", usage.ram_used_mib, MIB)
    add("memory_limit_bytes", "Memory that the run may use.", usage.ram_limit_mib, MIB)
    add("swap_used_bytes", "Swap in use.", usage.swap_used_mib, MIB)
    add("disk_free_bytes", "Free disk space for the run's files.", usage.disk_free_mib, MIB)
    add("disk_read_bytes_per_second", "Read from disks.", usage.disk_read_mib_s, MIB)
    add("disk_write_bytes_per_second", "Written to disks.", usage.disk_write_mib_s, MIB)
    add("network_receive_bytes_per_second", "Received by the machine.", usage.network_in_mib_s, MIB)
    add("network_transmit_bytes_per_second", "Sent by the machine.", usage.network_out_mib_s, MIB)
    for gpu in usage.gpus[:MOST_GPUS]:
        _add_gpu(metrics, gpu, run, node)


def _add_gpu(metrics: Metrics, gpu: GpuUsage, run: str, node: str) -> None:
    def add(name: str, text: str, value: float | None, scale: float = 1.0) -> None:
        scaled = None if value is None else value * scale
        metrics.add(f"gpu_{name}", text, scaled, run=run, node=node, gpu=str(gpu.index), model=gpu.name)

    add("utilization_ratio", "Time with work on the GPU.", gpu.utilization_percent, 0.01)
    add("memory_used_bytes", "GPU memory in use.", gpu.memory_used_mib, MIB)
    add("memory_total_bytes", "GPU memory.", gpu.memory_total_mib, MIB)
    add("temperature_celsius", "Temperature of the GPU.", gpu.temperature_c)
    add("power_watts", "Power that the GPU takes.", gpu.power_w)


def _label(text: str) -> str:
    """The value of a label, escaped; text of nodes is cut and without control characters."""
    shown = " ".join(printable(text)[:LABEL_CHARS].split("\n"))
    return shown.replace("\\", r"\\").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.15g}"
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
