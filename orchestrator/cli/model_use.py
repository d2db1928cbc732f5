"""`orch sample`, `predict` and `evaluate`: use the model of a run, on a node that holds its checkpoint."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.checkpoints import Asked, asked_nodes
from orchestrator.cli.completion import node_names
from orchestrator.cli.options import InventoryOption, JsonOption, RunArgument
from orchestrator.cli.report import progress_view, say, write_json, write_line
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_OK, ConfigError, UsageError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.plan.model_use import ModelPlace, ModelUse
    from orchestrator.specs.checkpoint import CheckpointCopy

EXAMPLES = {
    "sample": """\
orch sample --prompt "En el principio"
orch sample RUN --prompt "Once upon" --tokens 200 --temperature 0.8
orch sample RUN --prompt - < prompt.txt
""",
    "predict": """\
orch predict cat.jpg dog.jpg
orch predict RUN texts.csv --to ~/results
orch predict RUN pictures/*.png --checkpoint best
""",
    "evaluate": """\
orch evaluate
orch evaluate RUN --checkpoint best
orch evaluate RUN --to ~/results
""",
}
SHOWN = 20
"""Rows of the table on the terminal; the file has all."""


class Device(StrEnum):
    """Devices of a model."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options of all three commands."""

    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="NAME", help="newest, best, or a name such as step-00000100.")
    ] = "newest"
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NODE",
            autocompletion=node_names,
            help="A node that holds it (default: one without a run).",
        ),
    ] = ""
    device: Annotated[
        Device | None, typer.Option("--device", metavar="cpu|cuda", help="Default: the device of the run there.")
    ] = None
    as_json: JsonOption = False
    inventory: InventoryOption = None


ToOption = Annotated[
    Path, typer.Option("--to", metavar="DIR", help="Folder on this computer; files go to DIR/runs/RUN.")
]


@dataclass(frozen=True, kw_only=True)
class Used:
    """Result of the use of a model."""

    held: CheckpointCopy
    printed: list[str]
    """Stdout of each call of the trainer."""
    folder: Path
    """Folder of the files that it wrote, if it wrote any."""

    def data(self, **more: Any) -> dict[str, Any]:
        return {"run_id": self.held.run_id, "step": self.held.step, "from": self.held.node, **more}


def sample(
    *,
    run: RunArgument = None,
    prompts: list[str] = typer.Option(
        ..., "--prompt", metavar="PROMPT", help="Beginning of the text, - for stdin. Repeatable."
    ),
    tokens: int | None = typer.Option(None, min=1, metavar="N", help="Tokens to generate (default: 80)."),
    temperature: float | None = typer.Option(
        None, min=0, metavar="T", help="0: always the likeliest token (default: 0.6)."
    ),
    top_k: int | None = typer.Option(
        None, min=0, metavar="K", help="Choose from the K likeliest tokens, 0: from all (default: 50)."
    ),
    seed: int | None = typer.Option(None, metavar="N", help="Seed of the choice of tokens (default: 1337)."),
    choice: Choice,
) -> int:
    """Generate text with a checkpoint of a run, on a node that holds it.

    The trainer runs in a container without network, which is removed at the end. The run may still be active.
    """
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    values = {"--tokens": tokens, "--temperature": temperature, "--top-k": top_k, "--seed": seed}
    given = [f"{name}={value}" for name, value in values.items() if value is not None]
    used = use_model("sample", run, choice, options=[(f"--prompt={text}", *given) for text in texts])
    written = [text.removesuffix("\n") for text in used.printed]
    if choice.as_json:
        pairs = zip(texts, written, strict=True)
        write_json(used.data(samples=[{"prompt": prompt, "text": text} for prompt, text in pairs]))
    else:
        write_line("\n\n".join(written))
    say(f"✓ step {used.held.step} of run {used.held.run_id}, on {used.held.node}")
    return EXIT_OK


def predict(
    *,
    words: list[str] = typer.Argument(
        metavar="[RUN] FILE...", help="Run id (default: the newest run), then pictures, CSV files or traces."
    ),
    to: ToOption = Path(),
    choice: Choice,
) -> int:
    """Predict for files of this computer with a checkpoint of a run, on a node that holds it.

    The files are copied to a temporary folder of the node. The predictions come back as predictions.csv in
    DIR/runs/RUN/predict. The first word is a run unless a file has that name.
    """
    from orchestrator.plan.model_use import PREDICTIONS

    run = None if Path(words[0]).is_file() else words[0]
    files = [Path(word) for word in words[run is not None :]]
    _must_be_files(run, files)
    used = use_model("predict", run, choice, files=files, to=to)
    table = used.folder / PREDICTIONS
    columns, rows = _read(table)
    if choice.as_json:
        predictions = [dict(zip(columns, row, strict=False)) for row in rows]
        write_json(used.data(file=str(table), predictions=predictions))
    else:
        _show(columns, rows)
    say(f"✓ {table}: {counted(len(rows), 'row')}, step {used.held.step} of run {used.held.run_id}, on {used.held.node}")
    return EXIT_OK


def _must_be_files(run: str | None, files: Sequence[Path]) -> None:
    """ConfigError: a file does not exist. UsageError: there is none, or two have one name."""
    if not files:
        raise UsageError("no file to predict for", hint=f"orch predict {run} FILE")
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ConfigError(f"not a file on this computer: {', '.join(missing)}")
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"several files are named {', '.join(twice)}", hint="predict for them one after another")


def _read(table: Path) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the predictions. ConfigError: the file is not a table."""
    try:
        with table.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{table} holds no predictions: {error}") from error
    return columns, rows


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    shown = [columns, *rows[:SHOWN]]
    widths = [max(len(row[at]) if at < len(row) else 0 for row in shown) for at in range(len(columns))]
    for row in shown:
        write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
    if len(rows) > SHOWN:
        write_line(f"… and {len(rows) - SHOWN} more")


def evaluate(
    *,
    run: RunArgument = None,
    to: ToOption = Path(),
    choice: Choice,
) -> int:
    """Evaluate a checkpoint of a run on its validation data, on a node that holds it.

    The figures are printed; tables and pictures go to DIR/runs/RUN/evaluate.
    """
    used = use_model("evaluate", run, choice, to=to)
    text = "".join(used.printed).rstrip("\n")
    folder = used.folder if used.folder.is_dir() else None
    if choice.as_json:
        write_json(used.data(text=text, folder=str(folder or "")))
    else:
        write_line(text)
    where = f": {folder}" if folder else ""
    say(f"✓ step {used.held.step} of run {used.held.run_id}, on {used.held.node}{where}")
    return EXIT_OK


def use_model(
    action: str,
    run: str | None,
    choice: Choice,
    *,
    options: Sequence[tuple[str, ...]] = ((),),
    files: Sequence[Path] = (),
    to: Path = Path(),
) -> Used:
    """Check everything, then run the trainer once for each of `options` on a node that holds the checkpoint."""
    from orchestrator.cli.launching.grants import plan_to_use
    from orchestrator.fleet.checkpoints.use_model import ModelInput, chosen_copies, must_be_fit, run_model, running_on
    from orchestrator.plan.model_use import ModelUse

    with asked_nodes(choice.inventory, run) as asked, progress_view(quiet=choice.as_json) as view:
        run_id, held = asked.of(run)
        specs = {spec.name: spec for spec in asked.inventory.nodes}
        plan, own = plan_to_use(asked.nodes, asked.inventory, run_id)
        use = ModelUse(action=action, plan=plan, own=own)
        use.must_take([file.name for file in files])
        if choice.node and choice.node not in specs:
            raise ConfigError(f"there is no node {choice.node} in the inventory", hint="orch inventory list")
        there = [one for one in held if choice.node in ("", one.node)]
        copies = chosen_copies(asked.nodes, there, run_id, choice.checkpoint)
        nodes = {node.name: node for node in asked.nodes}
        busy = {one.node: running_on(nodes[one.node]) for one in copies}
        chosen = min(copies, key=lambda one: bool(busy[one.node]))
        node = nodes[chosen.node]
        place = _place(asked, use, node, chosen, choice.device)
        must_be_fit(node, use, place)
        if busy[node.name]:
            say(f"note: {node.name} is busy with run {busy[node.name]}: both are slower meanwhile")
        printed = run_model(node, use, place, ModelInput(options=options, files=files), to, view.notify)
    return Used(held=chosen, printed=printed, folder=to / "runs" / run_id / action)


def _place(asked: Asked, use: ModelUse, node: Node, held: CheckpointCopy, device: Device | None) -> ModelPlace:
    """Return the image and the device: those of the run on this node, unless another device is asked for."""
    from orchestrator.fleet.checkpoints.use_model import image_for
    from orchestrator.plan.model_use import ModelPlace
    from orchestrator.specs.container_limits import container_limits
    from orchestrator.specs.request import LaunchRequest

    part = next((one for one in use.plan.nodes if use.own and one.node == node.name), None)
    chosen = device.value if device else part.device if part else "cpu"
    request = LaunchRequest(project=asked.inventory.project, nodes=())
    used = [part.container.image] if part and part.device == chosen else []
    tags = [request.image_tag(chosen), *([request.image_tag("cuda")] if chosen == "cpu" else [])]
    machine = node.engine.facts()
    limits = container_limits(asked.inventory.node(node.name).limits, cpus=machine.cpus, memory_mib=machine.memory_mib)
    return ModelPlace(held=held, image=image_for(node, [*used, *tags]), device=chosen, limits=limits)
