"""Pictures of the terminal in docs/pictures, drawn by the renderers of orch from events made up here.

python scripts/pictures.py           # draw them again
python scripts/pictures.py --check   # exit code 1 where a picture is not as the code draws it; a test runs this
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from contract.event_lines import encode_event
from contract.events import (
    CheckpointWritten,
    Evaluated,
    Finished,
    GenerationStarted,
    GroupJoined,
    RankFailed,
    RankStarted,
    ResourcesSampled,
    Restarting,
    StepDone,
    TrainingDone,
)
from contract.resources import GpuUsage, ResourceUsage
from orchestrator.render.findings import DoctorReport, doctor_screen
from orchestrator.render.log_lines import LogPrinter
from orchestrator.render.runs import run_table
from orchestrator.render.why import why_lines, why_text
from orchestrator.specs.finding import Finding
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.node_report import Examined
from orchestrator.specs.run import ContainerFacts, Member, Run, State
from orchestrator.specs.run_events import RunLine
from orchestrator.state.facts import JournalRead, LineRead, NodeAnswered, RunFound, RunSeen
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import ClaimEntry, StartedEntry
from orchestrator.state.postmortem import Evidence, write_postmortem
from orchestrator.state.reduce import apply
from orchestrator.state.run_state import RunState
from orchestrator.state.verdict import verdict
from orchestrator.watch.live import LiveState
from orchestrator.watch.terminal.feed import LiveFeed
from orchestrator.watch.terminal.screen import MonitorApp
from orchestrator.watch.words import condition_lines

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS = 112
RUN = "novels-5f2c"
COMMAND = "gpt2 --preset mini --max-steps 4000"
NODES = ("tower", "studio", "laptop", "desk", "nas")
BEGAN = 1767366000.0
"""2026-01-02 15:00 UTC."""
NOW = BEGAN + 1180
FINAL_STEP, STEP = 4000, 1240
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; \
line-height: {line_height}px; white-space: pre }}
.{unique_id}-title {{ font: 18px system-ui, sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""SVG as rich draws it, without the fonts that it would fetch."""


# ── The run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def moment(seconds: float) -> str:
    """The time of a log line, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def line(seconds: float, node: str, text: str, *, agent: bool = False) -> RunLine:
    """A line of the only rank of a node, or of its agent."""
    rank = NODES.index(node)
    return RunLine(time=moment(seconds), node=node, node_rank=rank, rank=None if agent else rank, text=text)


def gpu(use: int, memory_mib: int, temperature_c: int, power_w: float, clock_mhz: int, slowed_by: str = "") -> GpuUsage:
    return GpuUsage(
        index=0, name="NVIDIA GeForce RTX 3050", utilization_percent=use, memory_used_mib=memory_mib,
        memory_total_mib=8192, temperature_c=temperature_c, power_w=power_w, clock_mhz=clock_mhz, slowed_by=slowed_by,
    )  # fmt: skip


def usage(cpu: float, cpus: int, ram_gib: float, of_gib: int, network: float, *gpus: GpuUsage) -> ResourceUsage:
    return ResourceUsage(
        cpu_percent=cpu, cpus=cpus, ram_used_mib=int(ram_gib * 1024), ram_limit_mib=of_gib * 1024,
        network_in_mib_s=network, network_out_mib_s=network * 0.98, gpus=gpus,
    )  # fmt: skip


USAGE = {
    "tower": usage(34, 12, 5.2, 24, 21.4, gpu(93, 4830, 66, 118.0, 1807)),
    "studio": usage(41, 8, 4.9, 16, 21.0, gpu(91, 4711, 69, 116.5, 1792)),
    "laptop": usage(63, 8, 4.4, 12, 20.7, gpu(98, 3480, 87, 58.0, 990, "temperature")),
    "desk": usage(96, 6, 3.1, 12, 20.9),
    "nas": usage(94, 4, 2.7, 6, 20.8),
}
COMPUTE_S = {"tower": 0.131, "studio": 0.134, "laptop": 0.228, "desk": 0.129, "nas": 0.127}


def run(state: State = State.RUNNING) -> Run:
    members = []
    for rank, name in enumerate(NODES):
        facts = ContainerFacts(
            id=f"{rank}f" * 6, name="orch-novels", image="sha256:" + "5a" * 6, labels={}, status="running",
            started_at=moment(BEGAN + 2), restarts=0,
        )  # fmt: skip
        members.append(Member(node=name, node_rank=rank, state=state, container=facts))
    return Run(
        run_id=RUN, project="novels", attempt=0, user="ana", started_at=moment(BEGAN), nnodes=len(NODES),
        command=COMMAND, master="tower", members=tuple(members),
    )  # fmt: skip


def step(number: int) -> StepDone:
    noise = (number * 7919 % 997) / 498.5 - 1.0
    others = {
        "lr": 6e-4 * (0.55 + 0.45 * math.cos(math.pi * number / FINAL_STEP)) * min(1.0, number / 200),
        "grad_norm": 0.4 + 1.6 * math.exp(-number / 300) + 0.03 * noise,
        "waiting": 0.012 + 0.004 * noise,
        "exchanging": 0.12 + 0.01 * ((number * 104729 % 991) / 495.5 - 1.0),
    }
    return StepDone(
        step=number, final_step=FINAL_STEP, loss=round(3.1 + 5.4 * math.exp(-number / 420) + 0.06 * noise, 3),
        per_s=12_600 - 700 * math.exp(-number / 260) + 90 * noise, unit="tokens", of_forecast=0.93,
        remaining_s=(FINAL_STEP - number) * 0.94, compute_s=COMPUTE_S, balanced=3, others=others,
    )  # fmt: skip


def lines_of_run() -> Iterator[RunLine]:
    """All events of the run in order of time, to its end; for the picture of a report."""
    for rank, name in enumerate(NODES):
        device = "cuda" if USAGE[name].gpus else "cpu"
        yield line(BEGAN + 6, name, encode_event(GenerationStarted(node=name, generation=0)), agent=True)
        yield line(BEGAN + 9, name, encode_event(RankStarted(rank=rank, node=name, device=device, threads=4)))
    joined = GroupJoined(rank=0, node="tower", world_size=len(NODES), backend="gloo")
    yield line(BEGAN + 12, "tower", encode_event(joined))
    for number in range(10, FINAL_STEP + 1, 10):
        at = BEGAN + 20 + number * 0.94
        yield line(at, "tower", encode_event(step(number)))
        if number % 100 == 0:
            for name in NODES:
                yield line(at + 0.1, name, encode_event(ResourcesSampled(node=name, usage=USAGE[name])), agent=True)
        if number % 500 == 0:
            loss = round((step(number).loss or 0.0) + 0.09, 3)
            yield line(at + 0.2, "tower", encode_event(Evaluated(step=number, loss=loss)))
            yield line(at + 0.3, "tower", encode_event(CheckpointWritten(step=number, path=f"step-{number:08}")))
        if number == 2200:
            lost = Restarting(node="desk", outcome="infrastructure", reason="its connection ended", generation=1)
            yield line(at + 0.4, "tower", encode_event(lost), agent=True)
    end = BEGAN + 24 + FINAL_STEP * 0.94
    yield line(
        end, "tower", encode_event(TrainingDone(step=FINAL_STEP, final_step=FINAL_STEP, loss=step(FINAL_STEP).loss))
    )


# ── The pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def state_now() -> RunState:
    """The state of the run: one node slows the others, and a failure is over."""
    state = RunState(run_id=RUN)
    recorded = fold((ClaimEntry(attempt=0, id="c", nodes=NODES), StartedEntry(attempt=0)))
    apply(state, JournalRead(seen=BEGAN, journal=recorded))
    apply(state, RunSeen(seen=BEGAN, run=run()))
    lost = Restarting(
        node="desk", outcome="infrastructure", reason="its connection ended", generation=1, restarts_left=2
    )
    again = GenerationStarted(node="tower", generation=2)
    for at, event in ((BEGAN + 600, lost), (BEGAN + 648, again)):
        apply(state, LineRead(seen=at, line=line(at, "tower", encode_event(event), agent=True)))
    for number in range(10, STEP + 1, 10):
        at = NOW - (STEP - number) * 0.4 - 1
        apply(state, LineRead(seen=at, line=line(at, "tower", encode_event(step(number)))))
    for name in NODES:
        apply(state, NodeAnswered(seen=NOW, node=name, usage=USAGE[name]))
    return state


def monitor() -> str:
    """The screen of `orch monitor`: one node slows the others, and a failure is over."""
    live = LiveState(NODES, clock=lambda: NOW)
    live.add(RunFound(state=state_now()))

    async def shoot() -> str:
        app = MonitorApp(LiveFeed(_nothing, live), interval_s=2.0, login=lambda *_: (), clock=lambda: NOW)
        async with app.run_test(size=(134, 18)) as pilot:
            await pilot.pause()
            return app.export_screenshot(title="orch monitor")

    return _without_fonts(asyncio.run(shoot()))


@contextmanager
def _nothing() -> Iterator[_Still]:
    """A watch of the nodes to which nothing happens."""
    yield _Still()


class _Still:
    names = NODES

    def facts(self) -> Iterator[object]:
        return iter(())

    def close(self) -> None: ...


def status() -> str:
    state = state_now()
    judged = verdict(state, NOW)
    lines = [line for one in judged.conditions for line in condition_lines(one, RUN, NOW)]
    return terminal("orch status", Group(run_table(state, judged, NOW), *lines), columns=132)


def logs() -> str:
    """Lines of a script of one's own on all nodes, the same ones once."""
    losses = {"tower": (2.303, 1.214, 0.871), "studio": (2.298, 1.236, 0.866), "laptop": (2.311, 1.225, 0.879)}
    lines = [line(BEGAN + 14, name, "read 41,200 rows of data/train.csv") for name in NODES]
    lines.append(line(BEGAN + 16, "laptop", "UserWarning: batch 64 does not fit into 3.8 GiB, taking 48"))
    for epoch in range(3):
        for number, (node, values) in enumerate(losses.items()):
            at, text = BEGAN + 30 * epoch + 30 + number / 10, f"epoch {epoch + 1}/20  loss {values[epoch]:.3f}"
            lines.append(line(at, node, text))
        lines.append(
            line(BEGAN + 30 * epoch + 35, "tower", f"accuracy {(0.412, 0.587, 0.693)[epoch]:.1%}, saved best.pt")
        )
    with contextlib.redirect_stdout(io.StringIO()) as written:
        printer = LogPrinter(names=NODES, as_json=False, fold={})
        for one in lines:
            printer.print(one)
        printer.rest()
    return terminal("orch logs -f", Text.from_ansi(written.getvalue().rstrip()))


def why() -> str:
    """The first failure of a run: its place, its cause and its fix."""
    at = BEGAN + 840
    trace = (
        "Traceback (most recent call last):",
        '  File "/workspace/code/train.py", line 88, in <module>',
        "    loss = step(model, batch)",
        '  File "/workspace/code/train.py", line 41, in step',
        "    return criterion(model(batch.images), batch.labels)",
        "IndexError: Target 10 is out of bounds.",
    )
    failed = RankFailed(rank=2, node="laptop", error="IndexError", message="Target 10 is out of bounds.",
                        frame="/workspace/code/train.py:41 in step")  # fmt: skip
    lines = [
        *(
            line(BEGAN + 12, name, encode_event(GroupJoined(rank=rank, world_size=5)))
            for rank, name in enumerate(NODES)
        ),
        line(at - 1, "tower", encode_event(step(STEP))),
        *(line(at + number / 1000, "laptop", text) for number, text in enumerate(trace)),
        line(at + 0.02, "laptop", encode_event(failed)),
        *(
            line(at + 0.4, name, "RuntimeError: [gloo] Connection closed by peer [192.168.1.13]:40112")
            for name in ("tower", "studio", "desk", "nas")
        ),
        line(
            at + 1, "tower", agent=True,
            text=encode_event(Finished(node="laptop", rank=2, exit_code=1, outcome="user", cause="data.labels",
                                       reason="IndexError: Target 10 is out of bounds.",
                                       frame="/workspace/code/train.py:41 in step")),
        ),
    ]  # fmt: skip
    containers = {
        name: ContainerFacts(id=name, name="orch-novels", image="", labels={}, status="exited", exit_code=1,
                             finished_at=moment(at + 2))
        for name in NODES
    }  # fmt: skip
    story = write_postmortem(Evidence(run_id=RUN, lines=tuple(lines), containers=containers, now=at + 60))
    return terminal("orch why", Group(*(why_text(row) for row in why_lines(story))))


def doctor() -> str:
    """Findings of several areas, each with its cause and its fix."""
    found = {
        "reach": (),
        "clock": (Finding.of("clock.skew", "nas", case="far", off="47 s behind"),),
        "engine": (),
        "gpu": (),
        "network": (Finding.of("network.slow_link", "desk", interface="enp3s0", speed_mbit=100),),
        "power": (
            Finding.of("power.sleep", "laptop", why="a laptop", targets=("sleep.target", "suspend.target")),
        ),
    }  # fmt: skip
    report = DoctorReport(
        at=datetime.fromtimestamp(NOW, UTC), findings=found,
        nodes=[Examined(spec=NodeSpec(name=name, address=f"192.168.1.{11 + rank}")) for rank, name in enumerate(NODES)],
        not_checked={}, area_seconds=dict.fromkeys(found, 0.9) | {"gpu": 2.4, "network": 1.7}, seconds=2.6,
        stage_seconds={},
    )  # fmt: skip
    return terminal("orch doctor", doctor_screen(report))


def overview() -> str:
    """One computer with an inventory, and the machines on which it starts a rank each."""
    kinds = {
        "tower": "RTX 3060", "studio": "RTX 3050", "laptop": "RTX 3050 laptop", "desk": "CPU, 6 cores",
        "nas": "CPU, 4 cores",
    }  # fmt: skip
    boxes = []
    for rank, (name, kind) in enumerate(kinds.items()):
        y = 14 + 62 * rank
        boxes.append(
            f'<path class="ssh" d="M266 172 C 330 172, 330 {y + 24}, 392 {y + 24}"/>'
            f'<rect class="node" x="394" y="{y}" width="330" height="48" rx="7"/>'
            f'<text class="name" x="410" y="{y + 20}">{name}</text><text x="410" y="{y + 38}">{kind}</text>'
            f'<rect class="rank" x="566" y="{y + 9}" width="146" height="30" rx="5"/>'
            f'<text class="in" x="639" y="{y + 29}">rank {rank} · torchrun</text>'
        )
        if rank:
            boxes.append(f'<path class="lan" d="M744 {y - 38} V {y + 24}"/>')
        boxes.append(f'<path class="lan" d="M724 {y + 24} H 744"/>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 336" role="img">
<title>Your computer starts a container on each machine of an inventory over SSH; the ranks exchange gradients</title>
<style>
text {{ font: 14px system-ui, sans-serif; fill: #3b4252 }}
.name, .own {{ font-weight: 600; fill: #111827 }}
.mono {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }}
.in {{ fill: #ffffff; text-anchor: middle; font-size: 13px }}
.node, .own-box {{ fill: #f6f8fa; stroke: #b6c0cc }}
.rank {{ fill: #2563a8 }}
.ssh {{ fill: none; stroke: #8a97a6; stroke-dasharray: 5 4; stroke-width: 1.5 }}
.lan {{ fill: none; stroke: #2563a8; stroke-width: 3 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #c3ccd6 }} .name, .own {{ fill: #f0f3f6 }} .node, .own-box {{ fill: #1b222b; stroke: #45505d }}
.lan {{ stroke: #5b9be0 }} .ssh {{ stroke: #7a8796 }}
}}
</style>
<rect class="own-box" x="14" y="92" width="252" height="160" rx="9"/>
<text class="own" x="32" y="118">your computer</text>
<text class="mono" x="32" y="146">inventory.yaml</text>
<text class="mono" x="32" y="172">$ orch build</text>
<text class="mono" x="32" y="192">$ orch doctor</text>
<text class="mono" x="32" y="212">$ orch launch -- gpt2</text>
<text class="mono" x="32" y="232">$ orch monitor</text>
<text x="286" y="58">SSH</text>
{"".join(boxes)}
<text class="own" x="762" y="162">your LAN:</text>
<text x="762" y="182">gradients,</text>
<text x="762" y="202">compressed on</text>
<text x="762" y="222">slow links</text>
</svg>
"""


PICTURES: dict[str, Callable[[], str]] = {
    "overview": overview, "monitor": monitor, "status": status, "logs": logs, "why": why, "doctor": doctor,
}  # fmt: skip


# ── Drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def terminal(command: str, view: RenderableType, *, columns: int = COLUMNS) -> str:
    """A terminal with a command and what it prints."""
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False,
        legacy_windows=False,
    )  # fmt: skip
    console.print(Text.assemble(("$ ", "green"), (command, "bold")))
    console.print(view)
    name = re.sub(r"\W+", "-", command)
    return console.export_svg(title=command, theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id=name)


def _without_fonts(svg: str) -> str:
    """A picture of textual without the fonts that it would fetch, and without a comment about its maker."""
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")
    return "\n".join(row.rstrip() for row in svg.splitlines()) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    checking = parser.parse_args().check
    os.environ |= {"TZ": "UTC", "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    os.environ.pop("NO_COLOR", None)
    time.tzset()
    code = 0
    for name, draw in PICTURES.items():
        file, svg = FOLDER / f"{name}.svg", draw()
        if not checking:
            file.write_text(svg, "utf-8")
        elif not file.is_file() or file.read_text("utf-8") != svg:
            print(f"{file.relative_to(FOLDER.parents[1])} is not as the code draws it: python scripts/pictures.py")  # noqa: T201
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
