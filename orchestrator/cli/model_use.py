"""The parts of `orch sample`, `predict` and `evaluate` that are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.checkpoints.looking import Asked, asked_nodes
from orchestrator.cli.completion import node_names
from orchestrator.cli.options import InventoryOption, JsonOption
from orchestrator.cli.report import say
from orchestrator.specs.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.nodes.interface import Node
    from orchestrator.plan.model_use import ModelPlace, ModelUse
    from orchestrator.specs.checkpoint import CheckpointCopy


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
    from orchestrator.cli.report import progress_view
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
